//! Arguments of `device`.

use std::path::PathBuf;

use siltstone_storage::link::Address;

/// Arguments of `device`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    silt device --listen unix:/run/user/1000/silt.sock --data /data/stores\n  \
    silt device --listen 127.0.0.1:4400 --data /data/stores --slots 2\n  \
    silt device --listen 127.0.0.1:4400 --keep 4GiB\n  \
    silt device --listen unix:/run/user/1000/silt.sock --data /data/stores --slots 2 --gpu\n  \
    silt device probe 127.0.0.1:4400\n  \
    silt put silt://127.0.0.1:4400/birds wren \"9 g\"\n  \
    silt load silt+unix:///run/user/1000/silt.sock#birds birds.csv\n  \
    silt load birds.silt birds.csv --device 127.0.0.1:4400\n\n\
    A device is a process beside the data, or on other cores. It has up to three uses. With --data \
    it holds the folders of stores, which commands and programs on any host open under the address \
    silt://HOST:PORT/FOLDER or silt+unix://SOCKET#FOLDER; their compactions run on the device. \
    With --share it runs the compactions of stores in a folder that host and device both see. \
    With --keep it runs the compactions of any store: it is sent the tables, and keeps as many \
    bytes of them for each session as given here.\n\n\
    Addresses are HOST:PORT (port 0 takes a free one) or unix:PATH. An address that other machines \
    can reach needs TLS: --tls-ca, --tls-cert and --tls-key are PEM files, and only hosts whose \
    certificate the authority signed can connect. They name their files by SILT_TLS_CA, \
    SILT_TLS_CERT and SILT_TLS_KEY. TCP addresses then use TLS, Unix sockets do not: only your own \
    processes can connect to them. With --access, a file with lines like `wren: birds eggs-*` says \
    which folders the host with the name wren in its certificate may use.\n\n\
    With --gpu the device offers each compaction to a GPU first. Its cores run what the GPU cannot \
    take or gives up, and everything if the GPU fails for good; a restart of the device opens the \
    GPU again. The GPU is opened for as many compactions at once as --slots says. Hosts divide \
    compactions into as many parts as --parallelism says, and a GPU computes the parts one after \
    the other; with --parallelism 1, compactions stay whole. --gpu-strategy quick and hierarchical \
    are refused, because hosts decide what a compaction drops. Stores on a device thus use a GPU \
    in another process than their own.\n\n\
    The command prints its addresses, then a line for each session that begins or ends and for \
    each peer that it refuses (after the first ten, one line in ten seconds), and every few \
    seconds what runs if that has changed. It does not wait for a reader of its output. \
    SIGINT and SIGTERM end it in order, with exit code 0; a second signal ends it at once. Hosts \
    that have stores open wait for half a minute for a device that was ended or killed. Their \
    stores then continue, unless it was killed in the middle of a sync of names: such a store \
    takes no more writes until it is opened again.")]
pub struct DeviceArgs {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub action: Option<DeviceCommand>,
    /// An address at which to listen; can be repeated.
    #[arg(long, value_name = "ADDR", required = true, value_parser = address)]
    pub listen: Vec<Address>,
    /// Hold the folders of stores below this folder, which is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The folder for notes and for tables that hosts send, if there is no --data. The default is
    /// siltstone below $XDG_STATE_HOME or $HOME/.local/state.
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub state: Option<PathBuf>,
    /// Run compactions of stores in this folder; can be repeated.
    #[arg(long, value_name = "FOLDER")]
    pub share: Vec<PathBuf>,
    /// Take tables that hosts send, and keep up to this number of bytes for each session, such as
    /// 4294967296 or 4GiB. The default is 4GiB with neither --data nor --share, and otherwise 0,
    /// which takes none.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub keep: Option<u64>,
    /// Keep up to this number of bytes of such tables for all sessions together, and no less than
    /// --keep; the default is eight times --keep.
    #[arg(long, value_name = "BYTES", requires = "keep", value_parser = size)]
    pub keep_all: Option<u64>,
    /// The number of compactions that run at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number())]
    pub slots: u32,
    /// The number of threads of one compaction; the default is the number of cores.
    #[arg(long, value_name = "N", value_parser = number())]
    pub parallelism: Option<u32>,
    #[command(flatten)]
    pub gpu: super::GpuUseArgs,
    /// The name of the device in messages of hosts, of up to 256 bytes; the default is the
    /// machine's name.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The certificate authority of the hosts, a PEM file. TCP addresses use TLS then.
    #[arg(long, value_name = "FILE", requires = "tls_cert", requires = "tls_key")]
    pub tls_ca: Option<PathBuf>,
    /// The device's own certificate, a PEM file. It must have the name or the IP address by which
    /// hosts connect.
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_key: Option<PathBuf>,
    /// A file that says which names of certificates may use which folders. Each line has a name, a
    /// colon, and names of folders; `eggs-*` stands for all that begin with `eggs-`. The absolute
    /// path of a shared folder may be there, too. Without this option every host with a certificate
    /// may use every folder.
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub access: Option<PathBuf>,
    /// Also listen without TLS at addresses that other machines can reach. Whoever reaches such an
    /// address can read, change and delete every store of the device, and bytes are not encrypted
    /// on their way.
    #[arg(long)]
    pub allow_plaintext_from_anyone: bool,
    /// End when the process with this id ends, which started this one.
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
}

/// What `silt device` does instead of serving.
#[derive(Debug, clap::Subcommand)]
pub enum DeviceCommand {
    /// Measure a device and the link to it, and predict where it pays.
    Probe(ProbeArgs),
}

/// Arguments of `device probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt device probe unix:/run/user/1000/silt.sock\n  \
    silt device probe 10.0.0.7:4400 --json\n\n\
    It measures the round trip, the bandwidth both ways, and small merges in memory here and on the \
    device, which also tells its cores, its memory and its storage. That takes some seconds of a \
    core on each side. From these it predicts for each shape (tables held by the device, in a \
    shared folder, or sent to it), codec and size of values whether the device pays, how many \
    times faster it is, and which resource it waits for. Nothing is changed on either side.\n\n\
    For an address with TLS, set SILT_TLS_CA, SILT_TLS_CERT and SILT_TLS_KEY.")]
pub struct ProbeArgs {
    /// The device's address: HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDR", value_parser = address)]
    pub address: Address,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Reads a number of bytes, such as 4GiB.
pub fn size(text: &str) -> Result<u64, String> {
    siltstone_bench::settings::parse_size(text).map_err(|error| error.to_string())
}

fn number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1024)
}

/// Reads an address of a device.
pub fn address(text: &str) -> Result<Address, String> {
    match text.parse() {
        Ok(Address::Memory(_)) => Err("expected HOST:PORT or unix:PATH".to_string()),
        Ok(address) => Ok(address),
        Err(error) => Err(error.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_addresses() {
        assert_eq!((size("4GiB"), size("7")), (Ok(4 << 30), Ok(7)));
        assert!(size("4 GB").unwrap_err().contains("64MiB"));
        assert!(address("127.0.0.1:0").unwrap().is_local());
        assert!(address("unix:/run/s").unwrap().is_local());
        assert!(!address("0.0.0.0:1").unwrap().is_local());
        for wrong in ["memory:x", "127.0.0.1", "unix:", ""] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}

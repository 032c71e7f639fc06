//! `silt device`: serves the folders and the cores of this machine to hosts, until a signal comes.
//!
//! Invariants: an address that other machines can reach is refused unless the user has accepted
//! what that means; the server is ended in order by the first signal. Hosts are served although the
//! reader of the output has gone.
//!
//! Threading: the server has its own tasks. The main thread waits for a signal, and gives lines to
//! the thread that writes the output.

mod lines;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone_device::wire::hello::NAME_MAX_BYTES;
use siltstone_device::{
    Access, DataFolder, ExecutorReport, Folders, NoFolders, Preferred, Server, ServerOptions,
    StartError, TlsFiles,
};
use siltstone_storage::link::{Address, LinkError, LinkErrorKind};
use siltstone_storage::{Runtime, StorageErrorKind};
use siltstone_table::exec::ExecutorState;

use lines::{Lines, Status};

use super::{LOCK_LOOK, LOCK_PATIENCE, place};
use crate::args::{DeviceArgs, DeviceCommand};
use crate::failure::{Failure, Outcome};
use crate::output::{bytes, plural};
use crate::signals::{Signal, Signals};

/// How often the sessions that began or ended are printed.
const LOOK: Duration = Duration::from_millis(200);

/// How often what runs is printed, if it has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The bytes of tables that a session may keep on a device that has no other use.
const KEEP: u64 = 4 << 30;

/// The bytes of tables that all sessions together may keep, as a multiple of those of one.
const KEEP_ALL: u64 = 8;

/// Runs the command.
pub fn run(args: &DeviceArgs) -> Result<Outcome, Failure> {
    if let Some(DeviceCommand::Probe(args)) = &args.action {
        return super::probe::run(args);
    }
    let is_lent_only = args.data.is_none() && args.share.is_empty();
    let keep = args.keep.unwrap_or(if is_lent_only { KEEP } else { 0 });
    if is_lent_only && keep == 0 {
        return Err(Failure::Usage(
            "the device would have nothing to do: give --data DIR to hold stores, --share FOLDER \
             to run compactions of stores in a folder, or --keep BYTES to be sent tables"
                .to_string(),
        ));
    }
    if let Some(all) = args.keep_all.filter(|all| *all < keep) {
        let rounded = [all, keep].map(bytes);
        let [all, keep] = match rounded[0] == rounded[1] {
            true => [all, keep].map(|exact| plural(exact, "byte")),
            false => rounded,
        };
        return Err(Failure::Usage(format!(
            "--keep-all ({all}) is less than --keep ({keep}): raise --keep-all or lower --keep"
        )));
    }
    let name = device_name(args)?;
    if let Some(parent) = args.parent {
        end_with(parent).map_err(|e| Failure::io("ending with another process", &e))?;
    }
    let tls = tls_files(args);
    if tls.is_none() && !args.allow_plaintext_from_anyone {
        args.listen.iter().try_for_each(refuse_foreign)?;
    }
    let shared = args.share.iter().map(|path| shared_folder(path));
    let shared = shared.collect::<Result<Vec<PathBuf>, _>>()?;
    let access = args.access.as_deref().map(access_list).transpose()?;
    let own = Own::of(args)?;
    let preferred = super::gpu::device_executors(&args.gpu, args.slots)?;
    let signals = Signals::new().map_err(signal_failure)?;
    signals.watch().map_err(signal_failure)?;
    let cores = super::probe::cores();
    let options = ServerOptions {
        name,
        slots: args.slots,
        parallelism: args.parallelism.unwrap_or(cores),
        preferred: Preferred(preferred),
        cores,
        memory_bytes: memory_bytes(),
        shared,
        keep_bytes: keep,
        keep_all_bytes: args.keep_all.unwrap_or(keep.saturating_mul(KEEP_ALL)),
        access,
        ..ServerOptions::default()
    };
    let mut lines =
        Lines::begin(args.json).map_err(|error| Failure::io("a thread for the output", &error))?;
    let server = start(args, &own, &options)?;
    lines.started(&server, &own, &options);
    if !options.preferred.0.is_empty() {
        lines.asks_first(&super::gpu::words(&args.gpu, &options.preferred.0));
    }
    let mut executors = Executors::default();
    let signal = serve(&server, &signals, &mut lines, &mut executors);
    lines.stopping(&server, signal);
    executors.print_done(server.executors(), &mut lines);
    server.stop();
    // This waits for a GPU that is being opened.
    drop(options);
    lines.end();
    Ok(Outcome::Fine)
}

/// The name that hosts show in their messages. They get it when they connect.
fn device_name(args: &DeviceArgs) -> Result<String, Failure> {
    let Some(name) = &args.name else {
        return Ok(Runtime::threads().host_name());
    };
    match name.len() <= NAME_MAX_BYTES {
        true => Ok(name.clone()),
        false => Err(Failure::Usage(format!(
            "--name has {} bytes, and at most {NAME_MAX_BYTES} are allowed: give a shorter one",
            name.len()
        ))),
    }
}

/// The process gets SIGTERM when the thread that started it ends.
#[cfg(target_os = "linux")]
fn end_with(parent: i32) -> std::io::Result<()> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::TERM))?;
    match getppid() == Pid::from_raw(parent) {
        true => Ok(()),
        false => Err(std::io::Error::other(format!(
            "process {parent} has ended already"
        ))),
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with(_parent: i32) -> std::io::Result<()> {
    Ok(())
}

/// The bytes of memory of this machine, or of the control group of this process if it has less.
fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = read("/proc/meminfo");
    let machine = machine.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let group = read("/proc/self/cgroup");
    let group = group.lines().find_map(|line| line.strip_prefix("0::"));
    let limit = group.map(|group| read(&format!("/sys/fs/cgroup{group}/memory.max")));
    let limit = limit.and_then(|limit| limit.trim().parse::<u64>().ok());
    match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit),
        (machine, limit) => machine.or(limit).unwrap_or(0),
    }
}

/// The certificates that the arguments name.
fn tls_files(args: &DeviceArgs) -> Option<TlsFiles> {
    Some(TlsFiles {
        ca: args.tls_ca.clone()?,
        certificate: args.tls_cert.clone()?,
        key: args.tls_key.clone()?,
    })
}

/// The list of names and folders in a file.
fn access_list(path: &Path) -> Result<Access, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file(path, &e))?;
    let list = Access::parse(&text);
    list.map_err(|error| Failure::Other(format!("{}: {error}", path.display())))
}

fn signal_failure(error: std::io::Error) -> Failure {
    Failure::io("signal handlers", &error)
}

/// Refuses an address that other machines can reach.
fn refuse_foreign(address: &Address) -> Result<(), Failure> {
    if address.is_local() {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "other machines can reach {address}, and without TLS anyone who reaches it could read, \
         change and delete every store of this device, and read everything on its way; give \
         --tls-ca, --tls-cert and --tls-key, or listen at 127.0.0.1:PORT or unix:PATH, or accept \
         this with --allow-plaintext-from-anyone"
    )))
}

/// The real path of a folder that is shared. Hosts name it by its real path, too.
fn shared_folder(path: &Path) -> Result<PathBuf, Failure> {
    let found = std::fs::canonicalize(path).map_err(|e| Failure::file(path, &e));
    let found = found.map_err(|failure| advised(&failure, "--share needs a folder that exists"))?;
    if found.to_str().is_none() {
        return Err(Failure::Usage(format!(
            "{}: the path of a folder to --share must be UTF-8, because hosts name it",
            found.display()
        )));
    }
    match found.is_dir() {
        true => Ok(found),
        false => Err(Failure::Other(format!(
            "{}: this is a file, and --share needs a folder",
            path.display()
        ))),
    }
}

fn advised(failure: &Failure, advice: &str) -> Failure {
    Failure::Other(format!("{failure}; {advice}"))
}

/// The folder that the device has for itself.
struct Own {
    path: PathBuf,
    /// Whether the folders of stores are in it.
    is_data: bool,
}

impl Own {
    fn of(args: &DeviceArgs) -> Result<Own, Failure> {
        let Some(data) = &args.data else {
            if let Some(state) = &args.state {
                place::refuse_url_for(state, "--state is a local folder for the device's notes")?;
            }
            let path = args.state.clone().or_else(default_state);
            return match path {
                Some(path) => Ok(Own {
                    path,
                    is_data: false,
                }),
                None => Err(Failure::Usage(
                    "neither XDG_STATE_HOME nor HOME is set, so there is no folder for the \
                     device's notes: choose one with --state DIR"
                        .to_string(),
                )),
            };
        };
        place::refuse_url_for(data, "--data is a local folder with the folders of stores")?;
        if place::has_store(data) {
            let (name, parent) = (data.file_name().unwrap_or_default(), data.parent());
            let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
            return Err(Failure::Usage(format!(
                "{} is a store itself, and --data needs the folder that has stores in it: give \
                 --data {}, and hosts open the folder {} there",
                data.display(),
                parent.unwrap_or(Path::new(".")).display(),
                name.to_string_lossy()
            )));
        }
        // A folder below a missing one is rather a mistyped path or a disk that is not mounted.
        let parent = data
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !parent.exists()) {
            return Err(Failure::Other(format!(
                "{}: the folder in which it should be does not exist; check the path of --data, \
                 or mount its disk",
                data.display()
            )));
        }
        Ok(Own {
            path: data.clone(),
            is_data: true,
        })
    }

    /// The option that chooses the folder.
    fn option(&self) -> &'static str {
        match self.is_data {
            true => "--data",
            false => "--state",
        }
    }

    fn folders(&self) -> siltstone_storage::Result<Arc<dyn Folders>> {
        Ok(match self.is_data {
            true => Arc::new(DataFolder::open(&self.path)?),
            false => Arc::new(NoFolders::open(&self.path)?),
        })
    }
}

/// The folder for notes, as the XDG base directories have it: a relative path there is ignored.
fn default_state() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from)?;
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("siltstone"))
}

/// Starts the server. If another process has its folder, waits a moment, because a device that was
/// just killed keeps its locks until its memory is freed.
fn start(args: &DeviceArgs, own: &Own, options: &ServerOptions) -> Result<Server, Failure> {
    let runtime = Runtime::threads();
    let network = siltstone_device::network(&runtime, tls_files(args).as_ref())
        .map_err(|error| Failure::Other(error.to_string()))?;
    let begun = Instant::now();
    loop {
        let folders = own.folders().map_err(|error| root_failure(own, &error))?;
        match Server::start(&runtime, &network, &args.listen, folders, options.clone()) {
            Err(StartError::Root(error))
                if error.kind == StorageErrorKind::LeaseHeld && begun.elapsed() < LOCK_PATIENCE =>
            {
                std::thread::sleep(LOCK_LOOK);
            }
            Err(StartError::Root(error)) => return Err(root_failure(own, &error)),
            Err(StartError::Link(error)) => return Err(listen_failure(&error)),
            Err(error @ StartError::Task(_)) => return Err(Failure::Other(error.to_string())),
            Ok(server) => return Ok(server),
        }
    }
}

fn root_failure(own: &Own, error: &siltstone_storage::StorageError) -> Failure {
    let (path, option) = (own.path.display(), own.option());
    Failure::Other(match error.kind {
        StorageErrorKind::LeaseHeld => format!(
            "{path}: another device has this folder: {error}; end that process, or give this \
             device another folder with {option}"
        ),
        _ => format!("{path}: the device cannot use this folder: {error}; {option} chooses it"),
    })
}

fn listen_failure(error: &LinkError) -> Failure {
    let advice = match error.kind {
        LinkErrorKind::AddressInUse => {
            "another process listens there; end it, or choose another address"
        }
        LinkErrorKind::InvalidAddress => "choose another address",
        LinkErrorKind::PermissionDenied => "choose an address that you may use",
        _ => "check the address; the folder of a Unix socket must exist",
    };
    Failure::Other(format!("{error}; {advice}"))
}

/// What was printed about the executors. Nothing is, if the cores of the machine are the only one.
#[derive(Default)]
struct Executors {
    states: Vec<ExecutorState>,
    done: Vec<ExecutorReport>,
}

impl Executors {
    /// Prints the states that have changed. At the begin, an executor is ready in silence.
    fn print_states(&mut self, reports: &[ExecutorReport], lines: &mut Lines) {
        self.states.resize(reports.len(), ExecutorState::Ready);
        for (before, report) in self.states.iter_mut().zip(reports) {
            if *before != report.state {
                lines.executor_state(report);
                *before = report.state.clone();
            }
        }
    }

    /// Prints what the executors did, if one of them did something since.
    fn print_done(&mut self, reports: Vec<ExecutorReport>, lines: &mut Lines) {
        let did = |reports: &[ExecutorReport]| -> u64 {
            let counts = |r: &ExecutorReport| r.done_count + r.passed_over_count + r.given_up_count;
            reports.iter().map(counts).sum()
        };
        if reports.len() > 1 && did(&reports) != did(&self.done) {
            lines.executors(&reports);
            self.done = reports;
        }
    }
}

/// Prints what the sessions of the server do until a signal comes.
fn serve(
    server: &Server,
    signals: &Signals,
    lines: &mut Lines,
    executors: &mut Executors,
) -> Signal {
    let mut status = Status::default();
    let mut next = Instant::now() + STATUS_INTERVAL;
    loop {
        let signal = signals.wait_for(LOOK);
        for event in server.take_session_events() {
            lines.session(&event);
        }
        lines.refused(server.take_refused());
        if let Some(missing) = server.take_missing_folders() {
            lines.missing(&missing);
        }
        let reports = server.executors();
        executors.print_states(&reports, lines);
        if let Some(signal) = signal {
            return signal;
        }
        if Instant::now() >= next {
            next = Instant::now() + STATUS_INTERVAL;
            let now = Status::of(server);
            if now != status {
                lines.status(&now);
                status = now;
            }
            executors.print_done(reports, lines);
        }
    }
}

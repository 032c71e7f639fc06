//! A device as a process of its own, which trials kill, cut off and flood: `device_server DATA
//! ADDRESS [CA CERTIFICATE KEY]`. It prints the address at which it listens, and ends with its
//! standard input.

use std::io::Read;
use std::sync::Arc;

use siltstone_device::{DataFolder, Server, ServerOptions, TlsFiles, network};
use siltstone_storage::Runtime;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(wrong) = serve(&words) {
        eprintln!("device_server: {wrong}");
        std::process::exit(1);
    }
}

fn serve(words: &[String]) -> Result<(), String> {
    let [data, address, rest @ ..] = words else {
        return Err("expected DATA ADDRESS [CA CERTIFICATE KEY]".into());
    };
    let tls = match rest {
        [ca, certificate, key] => Some(TlsFiles {
            ca: ca.into(),
            certificate: certificate.into(),
            key: key.into(),
        }),
        _ => None,
    };
    let runtime = Runtime::threads();
    let network = network(&runtime, tls.as_ref()).map_err(|e| e.to_string())?;
    let folders = Arc::new(DataFolder::open(data).map_err(|e| e.to_string())?);
    let options = ServerOptions {
        slots: 2,
        parallelism: 2,
        keep_bytes: 8 << 20,
        ..ServerOptions::default()
    };
    let address = address.parse().map_err(|e| format!("{address}: {e}"))?;
    let server = Server::start(&runtime, &network, &[address], folders, options);
    let server = server.map_err(|e| e.to_string())?;
    for address in server.addresses() {
        println!("{address}");
    }
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    server.stop();
    Ok(())
}

//! A device as a process of its own, which trials stop, kill, cut off and flood: `device_server
//! DATA ADDRESS [--share FOLDER | CA CERTIFICATE KEY]`. It prints the address at which it listens,
//! and ends with its standard input. A device that shares a folder keeps no tables, so it runs no
//! job of another folder.

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
    let expected = "expected DATA ADDRESS [--share FOLDER | CA CERTIFICATE KEY]";
    let [data, address, rest @ ..] = words else {
        return Err(expected.into());
    };
    let (mut shared, mut tls) = (Vec::new(), None);
    match rest {
        [] => {}
        [option, folder] if option == "--share" => {
            // Hosts name the folder by its real path.
            let folder = std::fs::canonicalize(folder).map_err(|e| format!("{folder}: {e}"))?;
            shared.push(folder);
        }
        [ca, certificate, key] => {
            tls = Some(TlsFiles {
                ca: ca.into(),
                certificate: certificate.into(),
                key: key.into(),
            });
        }
        _ => return Err(expected.into()),
    }
    let runtime = Runtime::threads();
    let network = network(&runtime, tls.as_ref()).map_err(|e| e.to_string())?;
    let folders = Arc::new(DataFolder::open(data).map_err(|e| e.to_string())?);
    let options = ServerOptions {
        slots: 2,
        parallelism: 2,
        keep_bytes: if shared.is_empty() { 8 << 20 } else { 0 },
        shared,
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

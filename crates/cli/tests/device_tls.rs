//! `silt device` and its hosts with certificates.

mod common;
#[allow(dead_code)]
#[path = "common/device.rs"]
mod device;

use std::process::{Command, Stdio};

use common::{Ended, SILT};
use device::{TestDevice, ended};
use rustix::process::Signal;

/// Whoever names one of the files wants TLS, and nothing may go over the link without it.
#[test]
fn a_part_of_the_certificates_is_refused() {
    let device = TestDevice::start(&[]);
    let url = device.url("birds");
    for (set, missing) in [
        (&["SILT_TLS_CA"][..], "SILT_TLS_CERT and SILT_TLS_KEY"),
        (&["SILT_TLS_CERT", "SILT_TLS_KEY"], "SILT_TLS_CA"),
    ] {
        let mut command = Command::new(SILT);
        command.args(["put", &url, "wren", "9 g"]);
        set.iter().for_each(|name| {
            command.env(name, "/nothing");
        });
        let said = Ended::from(command.output().unwrap()).failed(2);
        assert!(said.contains(&format!("set {missing} too")), "{said}");
    }
    assert!(!device.path("data/birds").exists());
}

/// Certificates of one authority, as files.
struct Certificates {
    dir: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Certificates {
    fn new() -> Certificates {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let dir = tempfile::tempdir().unwrap();
        let authority = params.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca"), authority.pem()).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        Certificates { dir, issuer }
    }

    /// The files of the authority, of a certificate with this name, and of its key.
    fn files(&self, name: &str) -> [String; 3] {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |file: &str| self.dir.path().join(file);
        let own = [format!("{name}.crt"), format!("{name}.key")].map(|file| path(&file));
        std::fs::write(&own[0], certificate.pem()).unwrap();
        std::fs::write(&own[1], key.serialize_pem()).unwrap();
        [&path("ca"), &own[0], &own[1]].map(|path| path.to_str().unwrap().to_string())
    }

    /// A command of the host with this name.
    fn silt(&self, name: &str, args: &[&str]) -> Ended {
        let [ca, certificate, key] = self.files(name);
        let mut command = Command::new(SILT);
        command
            .args(args)
            .env("SILT_TLS_CA", ca)
            .env("SILT_TLS_CERT", certificate)
            .env("SILT_TLS_KEY", key);
        command.output().unwrap().into()
    }
}

#[test]
fn names_of_certificates_use_their_own_folders() {
    let hosts = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access");
    std::fs::write(&access, "# hosts\nwren: birds eggs-*\nrobin: nests\n").unwrap();
    let [ca, certificate, key] = hosts.files("127.0.0.1");
    let mut child = Command::new(SILT)
        .args(["device", "--listen", "127.0.0.1:0", "--json", "--data"])
        .arg(dir.path().join("data"))
        .arg("--access")
        .arg(&access)
        .args([
            "--tls-ca",
            &ca,
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let started: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = started["addresses"][0].as_str().unwrap();
    let url = |folder: &str| format!("silt://{address}/{folder}");
    for (name, folder) in [("wren", "birds"), ("wren", "eggs-1"), ("robin", "nests")] {
        hosts.silt(name, &["put", &url(folder), "k", name]).fine();
        let got = hosts.silt(name, &["get", &url(folder), "k"]).fine();
        assert_eq!(got, format!("{name}\n"));
    }
    for (name, folder) in [("robin", "birds"), ("wren", "nests"), ("jay", "birds")] {
        let said = hosts.silt(name, &["get", &url(folder), "k"]).failed(3);
        assert!(said.contains(&format!("`{name}`")), "{said}");
        assert!(said.contains("access list"), "{said}");
        assert!(said.contains("check the certificates"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));
    // The device says whom it refused.
    let said = std::io::read_to_string(out).unwrap();
    for name in ["robin", "wren", "jay"] {
        let is_named = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let reason = event["reason"].as_str().unwrap_or_default();
            event["event"] == "refused" && reason.contains(&format!("`{name}`"))
        };
        assert!(said.lines().any(is_named), "{name}: {said}");
    }
}

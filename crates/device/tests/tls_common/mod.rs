//! Certificates for tests, and a network that changes what it carries.

#![allow(dead_code)]

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::ServerName;
use siltstone_device::TlsFiles;
use siltstone_storage::Instant;
use siltstone_storage::link::{Address, Connection, LinkResult, Listener, Network, Received};

/// An authority with keys of its own.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// Certificate files that exist as long as this value exists.
pub struct Files {
    files: TlsFiles,
    _dir: tempfile::TempDir,
}

impl Deref for Files {
    type Target = TlsFiles;

    fn deref(&self) -> &TlsFiles {
        &self.files
    }
}

impl Files {
    /// The same files, but with the CA file of another authority.
    pub fn with_ca_of(self, authority: &Authority) -> Files {
        write(&self.files.ca, &authority.certificate.pem());
        self
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    CertificateParams::new(names).unwrap()
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// A certificate with these names.
    pub fn files(&self, names: &[&str]) -> Files {
        self.sign(params(names))
    }

    /// A certificate whose only name is that of its subject.
    pub fn files_of_subject(&self, name: &str) -> Files {
        let mut params = params(&[]);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "birds");
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(params)
    }

    /// A certificate that has expired.
    pub fn expired(&self, names: &[&str]) -> Files {
        let mut params = params(names);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.sign(params)
    }

    /// A certificate that may be used by servers only.
    pub fn for_servers_only(&self, names: &[&str]) -> Files {
        let mut params = params(names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate that is signed by another certificate, which this authority has signed.
    pub fn files_through_another(&self, names: &[&str]) -> Files {
        let key = KeyPair::generate().unwrap();
        let mut between = params(&[]);
        between
            .distinguished_name
            .push(DnType::CommonName, "between");
        between.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = between.signed_by(&key, &self.issuer).unwrap();
        let between = Authority {
            issuer: Issuer::new(between, key),
            certificate,
        };
        let files = between.files(names).with_ca_of(self);
        let own = std::fs::read_to_string(&files.certificate).unwrap();
        write(&files.certificate, &(own + &between.certificate.pem()));
        files
    }

    fn sign(&self, params: CertificateParams) -> Files {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = TlsFiles {
            ca: dir.path().join("ca.pem"),
            certificate: dir.path().join("certificate.pem"),
            key: dir.path().join("key.pem"),
        };
        write(&files.ca, &self.certificate.pem());
        write(&files.certificate, &certificate.pem());
        write(&files.key, &key.serialize_pem());
        Files { files, _dir: dir }
    }

    /// A client that has no certificate, and connects to 127.0.0.1.
    pub fn without_certificate(&self) -> rustls::ClientConnection {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        rustls::ClientConnection::new(Arc::new(config), name).unwrap()
    }
}

/// A network that can change one bit of what its side sends.
#[derive(Clone)]
pub struct Tap {
    inner: Arc<dyn Network>,
    /// The number of bytes before the byte that is changed. Negative if no byte is changed.
    flip_in: Arc<AtomicI64>,
}

impl Tap {
    pub fn new(inner: &Arc<dyn Network>) -> Tap {
        Tap {
            inner: Arc::clone(inner),
            flip_in: Arc::new(AtomicI64::new(-1)),
        }
    }

    /// Changes a bit of the byte that is sent after this many other bytes.
    pub fn flip_in(&self, bytes: u32) {
        self.flip_in.store(bytes.into(), Ordering::Relaxed);
    }
}

impl Network for Tap {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        Ok(Arc::new(Tapped {
            inner: self.inner.connect(address, deadline)?,
            flip_in: Arc::clone(&self.flip_in),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        self.inner.listen(address)
    }
}

struct Tapped {
    inner: Arc<dyn Connection>,
    flip_in: Arc<AtomicI64>,
}

impl Connection for Tapped {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        let mut bytes = parts.concat();
        let at = self.flip_in.load(Ordering::Relaxed);
        if at >= 0 {
            let left = at - bytes.len() as i64;
            self.flip_in.store(left, Ordering::Relaxed);
            if left < 0 {
                bytes[at as usize] ^= 1;
                self.flip_in.store(-1, Ordering::Relaxed);
            }
        }
        self.inner.send(&[&bytes], deadline)
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        self.inner.receive(buf, deadline)
    }

    fn close(&self) {
        self.inner.close();
    }
}

//! The files of TLS, and the settings that are made from them.
//!
//! Invariants: an error names the file, and says what was expected in it.
//!
//! Threading: none. Everything is done by the calling task.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::TlsFiles;

/// Why TLS cannot be used with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {}, the file of the {what}: {error}", path.display())]
    Read {
        /// What the file should have.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A file does not contain what it must contain.
    #[error(
        "{} has no {what} in PEM; expected a line `-----BEGIN {expected}-----`",
        path.display()
    )]
    Missing {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The label of what was expected.
        expected: &'static str,
    },
    /// The content of a file is damaged, or of an unknown kind.
    #[error("the {what} in {} cannot be used: {detail}", path.display())]
    Invalid {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} is not that of the first certificate in {}; give the two files that were \
         made together",
        key.display(),
        certificate.display()
    )]
    KeyOfAnother {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// The settings of TLS were refused. This is a bug in this program.
    #[error("TLS could not be set up: {0}")]
    Setup(String),
}

const CA: &str = "authority's certificate";
const CERTIFICATE: &str = "certificate";
const KEY: &str = "private key";

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read {
        what,
        path: path.to_path_buf(),
        error,
    })
}

fn invalid(what: &'static str, path: &Path, detail: impl ToString) -> TlsError {
    TlsError::Invalid {
        what,
        path: path.to_path_buf(),
        detail: detail.to_string(),
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(what, path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| invalid(what, path, error))?;
    match found.is_empty() {
        false => Ok(found),
        true => Err(TlsError::Missing {
            what,
            path: path.to_path_buf(),
            expected: "CERTIFICATE",
        }),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(KEY, path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Missing {
            what: KEY,
            path: path.to_path_buf(),
            expected: "PRIVATE KEY",
        },
        error => invalid(KEY, path, error),
    })
}

fn authorities(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA, path)? {
        let added = roots.add(certificate);
        added.map_err(|error| invalid(CA, path, error))?;
    }
    Ok(Arc::new(roots))
}

fn own(files: &TlsFiles, provider: &CryptoProvider) -> Result<SingleCertAndKey, TlsError> {
    let chain = certificates(CERTIFICATE, &files.certificate)?;
    let key = provider
        .key_provider
        .load_private_key(private_key(&files.key)?)
        .map_err(|error| invalid(KEY, &files.key, error))?;
    let own = CertifiedKey::new(chain, key);
    own.keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::KeyOfAnother {
            key: files.key.clone(),
            certificate: files.certificate.clone(),
        },
        error => invalid(CERTIFICATE, &files.certificate, error),
    })?;
    Ok(SingleCertAndKey::from(own))
}

fn setup(error: impl ToString) -> TlsError {
    TlsError::Setup(error.to_string())
}

/// The settings of both sides.
pub(super) fn load(
    files: &TlsFiles,
    clock: Arc<dyn TimeProvider>,
) -> Result<(ClientConfig, ServerConfig), TlsError> {
    let provider = Arc::new(ring::default_provider());
    let roots = authorities(&files.ca)?;
    let own = Arc::new(own(files, &provider)?);
    let of_servers =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let mut client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock))
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .with_webpki_verifier(of_servers.build().map_err(setup)?)
        .with_client_cert_resolver(Arc::clone(&own) as _);
    client.resumption = Resumption::disabled();
    let of_clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let mut server = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .with_client_cert_verifier(of_clients.build().map_err(setup)?)
        .with_cert_resolver(own);
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok((client, server))
}

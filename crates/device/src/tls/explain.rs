//! Explains errors of TLS in one line, with advice.
//!
//! Invariants: an error that another attempt cannot cure, because certificates or settings must be
//! changed first, has the kind [`LinkErrorKind::PermissionDenied`].
//!
//! Threading: pure functions.

use rustls::{AlertDescription as Alert, CertificateError as Bad, Error, InvalidMessage};
use siltstone_storage::link::LinkErrorKind;

/// The kind of an error, and its text.
pub(super) fn explain(error: &Error, is_handshaking: bool) -> (LinkErrorKind, String) {
    match error {
        Error::InvalidCertificate(bad) => (LinkErrorKind::PermissionDenied, of_certificate(bad)),
        Error::NoCertificatesPresented => (
            LinkErrorKind::PermissionDenied,
            "the peer sent no certificate; give it one that is signed by the authority in the CA \
             file of this side"
                .into(),
        ),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::PeerIncompatible(what) => (
            LinkErrorKind::PermissionDenied,
            format!("the peer does not speak TLS 1.3 as siltstone does ({what:?}); update it"),
        ),
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) if is_handshaking => (
            LinkErrorKind::PermissionDenied,
            "the peer does not speak TLS; use TLS on both sides or on neither".into(),
        ),
        Error::DecryptError => (
            LinkErrorKind::Closed,
            "bytes were changed on their way, so the connection was ended".into(),
        ),
        other => (
            LinkErrorKind::Closed,
            format!("the peer broke the rules of TLS ({other}), so the connection was ended"),
        ),
    }
}

fn of_certificate(bad: &Bad) -> String {
    match bad {
        Bad::Expired | Bad::ExpiredContext { .. } => {
            "the peer's certificate has expired; renew it, or set the clock of this machine".into()
        }
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet; set the clocks of both machines".into()
        }
        Bad::UnknownIssuer | Bad::BadSignature => {
            "the peer's certificate is not signed by an authority in the CA file of this side; \
             use the CA file of the authority that signed it"
                .into()
        }
        Bad::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names = match presented.is_empty() {
                true => "none".to_string(),
                false => presented.join(", "),
            };
            format!(
                "the peer's certificate is not for the name `{}` of the address but for: {names}; \
                 use one of these names in the address, or make a certificate with that name",
                expected.to_str()
            )
        }
        Bad::NotValidForName => "the peer's certificate is not for the name in the address".into(),
        Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
            "the peer's certificate may not be used for this side of a connection; make one whose \
             extended key usage has both `clientAuth` and `serverAuth`, or none"
                .into()
        }
        other => format!("the peer's certificate was refused ({other}); make a new one"),
    }
}

fn of_alert(alert: Alert) -> (LinkErrorKind, String) {
    let text = match alert {
        Alert::CertificateRequired => {
            "the peer requires a certificate of this side; give one that its authority signed"
        }
        Alert::UnknownCA | Alert::DecryptError => {
            "the peer does not know the authority that signed the certificate of this side; use a \
             certificate of the authority in the peer's CA file"
        }
        Alert::CertificateExpired => {
            "the certificate of this side has expired, the peer says; renew it, or set the peer's \
             clock"
        }
        Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnsupportedCertificate => {
            "the peer refused the certificate of this side; its log says why"
        }
        Alert::AccessDenied => "the peer denied access to the certificate of this side",
        Alert::ProtocolVersion | Alert::HandshakeFailure => {
            "the peer does not speak TLS 1.3 as siltstone does; update it"
        }
        other => {
            let text = format!("the peer ended the connection with the TLS alert {other:?}");
            return (LinkErrorKind::Closed, text);
        }
    };
    (LinkErrorKind::PermissionDenied, text.into())
}

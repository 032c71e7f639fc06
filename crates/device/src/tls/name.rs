//! The name in a certificate that has been checked.
//!
//! Invariants: no bytes of a certificate cause a panic. Lengths are checked before they are used.
//!
//! Threading: pure functions.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The first DNS name of the certificate, or its subject's common name if it has no DNS name.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    match certificate.valid_dns_names().next() {
        Some(name) => Some(name.to_string()),
        None => common_name(certificate.subject()),
    }
}

/// The tags of DER that a subject uses.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;

/// The object identifier 2.5.4.3 of a common name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The first common name in the fields of a subject.
fn common_name(mut subject: &[u8]) -> Option<String> {
    while let Some((SET, mut set)) = element(&mut subject) {
        while let Some((SEQUENCE, mut field)) = element(&mut set) {
            let (OBJECT_ID, id) = element(&mut field)? else {
                return None;
            };
            let (UTF8_STRING | PRINTABLE_STRING, text) = element(&mut field)? else {
                continue;
            };
            if id == COMMON_NAME {
                return String::from_utf8(text.to_vec()).ok();
            }
        }
    }
    None
}

/// Takes the next element, and returns its tag and content.
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, first], after) = rest.split_first_chunk()?;
    let (len, after) = match first {
        0..=0x7f => (usize::from(first), after),
        0x81 => {
            let (&len, after) = after.split_first()?;
            (usize::from(len), after)
        }
        0x82 => {
            let (&len, after) = after.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(len)), after)
        }
        _ => return None,
    };
    let (content, after) = after.split_at_checked(len)?;
    *rest = after;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `O=field, CN=wren`.
    const SUBJECT: &[u8] = b"\x31\x0e\x30\x0c\x06\x03\x55\x04\x0a\x0c\x05field\
        \x31\x0d\x30\x0b\x06\x03\x55\x04\x03\x0c\x04wren";

    #[test]
    fn a_common_name_is_found_behind_other_fields() {
        assert_eq!(common_name(SUBJECT).as_deref(), Some("wren"));
        assert_eq!(common_name(b""), None);
    }

    #[test]
    fn damaged_subjects_have_no_name_or_another_one() {
        for len in 0..SUBJECT.len() {
            assert_eq!(common_name(&SUBJECT[..len]), None);
            for value in 0..=255 {
                let mut damaged = SUBJECT.to_vec();
                damaged[len] = value;
                // It must not panic.
                let _ = common_name(&damaged);
            }
        }
    }
}

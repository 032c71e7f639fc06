//! Hashes of secrets and of certificates (SHA-256, from the provider of TLS).
//!
//! Threading: pure functions.

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

/// SHA-256 of the bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let suite = TLS13_AES_128_GCM_SHA256.tls13();
    let hash = suite
        .expect("it is a suite of TLS 1.3")
        .common
        .hash_provider;
    let mut out = [0; 32];
    out.copy_from_slice(hash.hash(bytes).as_ref());
    out
}

/// What a server keeps of a session's token: a hash. Only the session's host knows the token
/// itself.
pub(crate) fn token_hash(token: &[u8; 16]) -> u128 {
    let hash = sha256(token);
    u128::from_le_bytes(*hash.first_chunk().expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_standard() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(b"abc")), expected);
        assert_ne!(token_hash(&[1; 16]), token_hash(&[2; 16]));
    }
}

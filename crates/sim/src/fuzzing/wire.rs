//! Parsers of the protocol between a host and a device (`docs/format/wire.md`): hellos, frames, the
//! fields of requests and answers, and the work of a job. Both sides read what a hostile peer may
//! have sent.

use siltstone_device::wire::frame::{FrameReader, HEADER_BYTES};
use siltstone_device::wire::job::{get_work, put_work};
use siltstone_device::wire::{Answer, ClientHello, FrameHeader, Request, ServerHello};
use siltstone_table::checksum::crc32c;

use super::{fixup, table};

/// A hello of either side.
pub(super) fn hello(bytes: &[u8]) {
    let mut fitting = bytes.to_vec();
    fixup::trailing_crc(&mut fitting);
    for bytes in [bytes, &fitting[..]] {
        if let Ok((_, hello)) = ClientHello::decode(bytes) {
            let again = ClientHello::decode(&hello.encode()).expect("what decodes encodes");
            assert_eq!(again.1, hello);
        }
        if let Ok((version, hello)) = ServerHello::decode(bytes) {
            let again = ServerHello::decode(&hello.encode(version)).expect("what decodes encodes");
            assert_eq!(again.1, hello);
        }
    }
}

/// The kind of a message, and its fields.
pub(super) fn message(bytes: &[u8]) {
    let Some((kind, fields)) = bytes.split_first_chunk() else {
        return;
    };
    let kind = u16::from_le_bytes(*kind);
    if let Ok(request) = Request::decode(kind, fields) {
        assert_eq!(request.kind(), kind);
        let again = Request::decode(kind, &request.encode()).expect("what decodes encodes");
        assert_eq!(again, request);
    }
    if let Ok(answer) = Answer::decode(kind, fields) {
        assert_eq!(answer.kind(), kind);
        let again = Answer::decode(kind, &answer.encode()).expect("what decodes encodes");
        assert_eq!(format!("{again:?}"), format!("{answer:?}"));
    }
}

/// The bulk bytes of the request that begins a job: the job, and the parts after which it goes on.
pub(super) fn work(bytes: &[u8]) {
    let Ok((job, parts)) = get_work(bytes) else {
        return;
    };
    let inside = job.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    assert!(inside + 8 + 4 * parts.len() == bytes.len());
    let owned: Vec<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
    let whole = (bytes.to_vec(), parts.len());
    assert_eq!(put_work(job, &owned, bytes.len()), whole);
    // One byte less has no room for the last part.
    if let Some((_, fewer)) = owned.split_last() {
        let (shorter, count) = put_work(job, &owned, bytes.len() - 1);
        assert_eq!(count, fewer.len());
        let again = get_work(&shorter).expect("what is left out leaves well formed work");
        assert_eq!(again, (job, parts[..count].to_vec()));
    }
    table::job(job);
    for part in parts.iter().take(64) {
        table::part(part);
    }
}

/// What a connection receives after the hello. The same frames come out however the bytes are cut
/// into pieces.
pub(super) fn frames(bytes: &[u8]) {
    for bytes in [bytes, &with_checksums(bytes)[..]] {
        let whole = received(bytes, usize::MAX);
        for most in [1, 7, HEADER_BYTES] {
            assert_eq!(received(bytes, most), whole, "pieces of {most} bytes");
        }
    }
}

/// What a connection received.
#[derive(Debug, PartialEq)]
struct Received {
    /// The fields and the bulk bytes of each frame.
    frames: Vec<[Vec<u8>; 2]>,
    /// Whether what follows the frames was refused.
    is_refused: bool,
}

/// The frames in `bytes`, which come in pieces of at most `most` bytes.
fn received(bytes: &[u8], most: usize) -> Received {
    let (mut reader, mut frames, mut at) = (FrameReader::new(), Vec::new(), 0);
    loop {
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push([frame.fields(), frame.bulk()].map(<[u8]>::to_vec)),
                Ok(None) => break,
                Err(_) => {
                    let is_refused = true;
                    return Received { frames, is_refused };
                }
            }
        }
        if at == bytes.len() {
            let is_refused = false;
            return Received { frames, is_refused };
        }
        let space = reader.space();
        let len = space.len().min(most).min(bytes.len() - at);
        assert!(len > 0, "no frame is complete, and there is no room");
        space[..len].copy_from_slice(&bytes[at..at + len]);
        at += len;
        if reader.filled(len).is_err() {
            let is_refused = true;
            return Received { frames, is_refused };
        }
    }
}

/// The same bytes, in which the checksums of all frames are right, as far as the lengths of the
/// frames can be followed.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (bytes.to_vec(), 0);
    while let Some(header) = out.get(at..at + HEADER_BYTES) {
        let number = |at: usize| {
            let four = header[at..at + 4].try_into();
            u32::from_le_bytes(four.unwrap_or_default()) as usize
        };
        let body = at + HEADER_BYTES;
        let end = body.saturating_add(number(0)).saturating_add(number(4));
        let body_crc = crc32c(&out[body..end.min(out.len())]);
        out[at + 20..at + 24].copy_from_slice(&body_crc.to_le_bytes());
        let crc = crc32c(&out[at..at + HEADER_BYTES - 4]);
        out[body - 4..body].copy_from_slice(&crc.to_le_bytes());
        let decoded = out[at..body].first_chunk().map(FrameHeader::decode);
        if !matches!(decoded, Some(Ok(_))) || end > out.len() {
            break;
        }
        at = end;
    }
    out
}

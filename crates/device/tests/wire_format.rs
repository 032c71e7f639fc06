//! Compares `docs/format/wire.md` with the code. Hellos and a frame that are made by hand as the
//! page says are what the code writes and reads, and the tables of the page have exactly the
//! existing fields, in order.

use siltstone_device::wire::frame::{FrameHeader, HEADER_BYTES, Label, header_of};
use siltstone_device::wire::hello::{ClientHello, Role, ServerHello, Welcome};

const PAGE: &str = include_str!("../../../docs/format/wire.md");

/// The tags in the table below a heading of the page.
fn tags(heading: &str) -> Vec<u16> {
    let section = PAGE.split(heading).nth(1).unwrap();
    let section = section.split("\n##").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(' ').next()?.parse().ok())
        .collect()
}

/// A hello of version 1 with these fields.
fn by_hand(fields: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (tag, field) in fields {
        body.extend(tag.to_le_bytes());
        body.extend((field.len() as u32).to_le_bytes());
        body.extend(field);
    }
    let mut bytes = b"siltlink\x01\0\x01\0".to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// *Bytes* of the page: a length and the bytes.
fn bytes_of(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// An *option* of the page.
fn option_of(bytes: Option<&[u8]>) -> Vec<u8> {
    match bytes {
        None => vec![0],
        Some(bytes) => [vec![1], bytes_of(bytes)].concat(),
    }
}

#[test]
fn the_hello_of_a_host_is_encoded_as_the_page_says() {
    for (folder, role, number) in [
        (None, Role::Control, 0),
        (Some("db"), Role::Files, 1),
        (Some("db"), Role::Bulk, 2),
    ] {
        let hello = ClientHello {
            role,
            token: *b"0123456789abcdef",
            generation: 0x0102_0304_0506_0708,
            folder: folder.map(str::to_string),
            host: "box".into(),
        };
        let fields = [
            (1, vec![number]),
            (2, bytes_of(b"0123456789abcdef")),
            (3, vec![8, 7, 6, 5, 4, 3, 2, 1]),
            (4, option_of(folder.map(str::as_bytes))),
            (5, bytes_of(b"box")),
        ];
        assert_eq!(
            fields.each_ref().map(|f| f.0).to_vec(),
            tags("### Of a host")
        );
        let bytes = by_hand(&fields);
        assert_eq!(hello.encode(), bytes);
        assert_eq!(ClientHello::decode(&bytes), Ok((1, hello)));
    }
}

#[test]
fn the_hello_of_a_device_is_encoded_as_the_page_says() {
    let welcome = ServerHello::Welcome(Welcome {
        state: *b"fedcba9876543210",
        boot: vec![4, 5],
        device: "dpu0".into(),
        files_window_bytes: 258,
        bulk_window_bytes: 3,
    });
    let fields = [
        (1, option_of(None)),
        (2, bytes_of(b"fedcba9876543210")),
        (3, bytes_of(&[4, 5])),
        (4, bytes_of(b"dpu0")),
        (5, vec![2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]),
    ];
    assert_eq!(
        fields.each_ref().map(|f| f.0).to_vec(),
        tags("### Of a device")
    );
    let bytes = by_hand(&fields);
    assert_eq!(welcome.encode(1), bytes);
    assert_eq!(ServerHello::decode(&bytes), Ok((1, welcome)));
    let refused = ServerHello::Refused("no".into());
    let bytes = by_hand(&[(1, option_of(Some(b"no")))]);
    assert_eq!(refused.encode(1), bytes);
    assert_eq!(ServerHello::decode(&bytes), Ok((1, refused)));
}

#[test]
fn a_frame_is_encoded_as_the_page_says() {
    let label = Label {
        number: 0x0102_0304_0506_0708,
        stream: 0x1112_1314,
        kind: 0x2122,
        flags: 0x3132,
    };
    let header = header_of(label, b"ab", &[b"c", b"de"]);
    let mut bytes = vec![2, 0, 0, 0, 3, 0, 0, 0];
    bytes.extend([8, 7, 6, 5, 4, 3, 2, 1]);
    bytes.extend([0x14, 0x13, 0x12, 0x11, 0x22, 0x21, 0x32, 0x31]);
    bytes.extend(crc32c::crc32c(b"abcde").to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    assert_eq!(header.encode()[..], bytes);
    assert_eq!(
        FrameHeader::decode(bytes.first_chunk().unwrap()),
        Ok(header)
    );
}

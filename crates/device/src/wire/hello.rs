//! The hellos with which a connection begins. Their format is the same in all versions, so that two
//! sides of any versions can tell each other that their versions do not match.
//!
//! ```text
//! magic 8 bytes | lowest version u16 | highest version u16 | length u32 | fields | crc32c u32
//! ```
//! The server answers with the version that it chose, as both the lowest and the highest version,
//! or with a refusal and its own range of versions.
//!
//! Invariants: a hello has at most [`HELLO_MAX`] bytes. A peer that is not authenticated yet cannot
//! make the other side keep more than that. Texts for messages are cut when a hello is encoded, so
//! that a long text does not make the hello longer than the other side accepts.

use siltstone_storage::StorageErrorKind;
use siltstone_table::Damage;
use siltstone_table::checksum::crc32c;
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

use super::error::{code_of, kind_of};
use super::{Shown, WireError};

/// The first bytes of every connection.
pub const MAGIC: [u8; 8] = *b"siltlink";

/// The lowest and the highest version of the protocol that this program supports.
pub const VERSIONS: (u16, u16) = (1, 1);

/// The number of bytes before the fields of a hello.
pub const HELLO_HEAD_BYTES: usize = 16;

/// The maximum number of bytes of a hello.
pub const HELLO_MAX: usize = 4096;

/// The maximum number of bytes of a device's name.
pub const NAME_MAX_BYTES: usize = 256;

/// The maximum number of bytes of the description of a host.
const HOST_MAX_BYTES: usize = 1024;

/// The maximum number of bytes of the reason of a refusal.
const REASON_MAX_BYTES: usize = 2048;

/// The folder that a session uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderWanted {
    /// No folder: the session runs jobs in shared folders only.
    None,
    /// The folder of this name.
    Named {
        /// Its name, which follows the rule for names of objects.
        name: String,
        /// Whether it is created if there is none.
        create: bool,
    },
    /// An empty folder that exists as long as the device's state of the session exists.
    Scratch,
}

/// The first message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The token of the session that the connection belongs to. It is a secret of the host.
    pub token: [u8; 16],
    /// The folder that the session uses.
    pub folder: FolderWanted,
    /// A description of the host, for messages: its name and the number of its process.
    pub host: String,
}

/// The answer of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHello {
    /// The session begins, or continues.
    Welcome(Welcome),
    /// The device refuses the session.
    Refused(Refusal),
}

/// Why a device refuses a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of the failure.
    pub kind: StorageErrorKind,
    /// The reason, with advice.
    pub reason: String,
}

/// The device, and its state of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The id of the device's state of the session. If the id has changed, the device has forgotten
    /// the session.
    pub state: [u8; 16],
    /// An id of the present boot of the device's machine. It changes when the machine is restarted.
    pub boot: Vec<u8>,
    /// The device's id, which stays the same when the device is restarted.
    pub device: [u8; 16],
    /// The device's name, for messages.
    pub name: String,
    /// The number of jobs that the device runs at once, and the number of subjobs of each job.
    pub slots: (u32, u32),
    /// The number of objects that the session may have open at once.
    pub open_objects_max: u64,
    /// The bytes that the session may keep in a scratch folder.
    pub keep_bytes: u64,
    /// What the device supports beyond the required requests: bits of [`capability`]. Unknown bits
    /// are ignored.
    pub capabilities: u32,
}

/// The capabilities of a device.
pub mod capability {
    /// The device answers requests to open a finished object. On a connection within one machine it
    /// passes the object's descriptor.
    pub const FINISHED: u32 = 1;
}

/// The tags of fields.
mod tag {
    pub const TOKEN: u16 = 1;
    pub const FOLDER: u16 = 2;
    pub const HOST: u16 = 3;
    pub const REFUSED: u16 = 1;
    pub const STATE: u16 = 2;
    pub const BOOT: u16 = 3;
    pub const DEVICE: u16 = 4;
    pub const NAME: u16 = 5;
    pub const LIMITS: u16 = 6;
    /// A host that does not know this tag makes no requests that depend on it.
    pub const CAPABILITIES: u16 = 1 | siltstone_table::fields::MAY_SKIP;
}

/// The bytes of a hello.
fn hello(versions: (u16, u16), fields: FieldWriter) -> Vec<u8> {
    let fields = fields.into_bytes();
    let mut out = MAGIC.to_vec();
    out.extend(versions.0.to_le_bytes());
    out.extend(versions.1.to_le_bytes());
    out.extend((fields.len() as u32).to_le_bytes());
    out.extend(fields);
    let crc = crc32c(&out);
    out.extend(crc.to_le_bytes());
    out
}

/// The beginning of a text, with at most this number of bytes.
fn beginning(text: &str, max_bytes: usize) -> &[u8] {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

/// The length of a complete hello that begins with these bytes.
///
/// # Errors
/// If the bytes are not a hello, or the hello is too large.
pub fn hello_len(head: &[u8; HELLO_HEAD_BYTES]) -> Result<usize, WireError> {
    if head[..8] != MAGIC {
        return Err(WireError::Foreign(Shown(head.to_vec())));
    }
    let mut i = FieldReader::new(&head[12..]);
    let len = i.u32("length of a hello")? as usize;
    let most = HELLO_MAX - HELLO_HEAD_BYTES - 4;
    if len > most {
        let damage = Damage::new("length of a hello", 12, most as u64, len as u64);
        return Err(damage.into());
    }
    Ok(HELLO_HEAD_BYTES + len + 4)
}

/// The versions of a hello, and a reader of its fields.
fn open(bytes: &[u8]) -> Result<((u16, u16), FieldReader<'_>), WireError> {
    let short = || Damage::new("length of a hello", 0, 20, bytes.len() as u64);
    let head = bytes.first_chunk().ok_or_else(short)?;
    let len = hello_len(head)?;
    if bytes.len() != len {
        return Err(Damage::new("length of a hello", 12, len as u64, bytes.len() as u64).into());
    }
    let (covered, crc) = bytes.split_at(len - 4);
    let found = crc32c(covered);
    let expected = FieldReader::new(crc).u32("checksum of a hello")?;
    if expected != found {
        let at = covered.len() as u64;
        let damage = Damage::new("checksum of a hello", at, expected.into(), found.into());
        return Err(damage.into());
    }
    let mut i = FieldReader::new(&covered[8..12]);
    let versions = (i.u16("lowest version")?, i.u16("highest version")?);
    Ok((versions, FieldReader::new(&covered[HELLO_HEAD_BYTES..])))
}

fn get_id(i: &mut FieldReader<'_>, what: &'static str) -> Decoded<[u8; 16]> {
    let at = i.position();
    let bytes = i.bytes(what)?;
    let wrong = || Damage::new(what, at, 16, bytes.len() as u64);
    bytes.try_into().map_err(|_| wrong())
}

/// The capabilities of a device. An older device does not report them.
fn get_capabilities(mut i: FieldReader<'_>) -> Decoded<u32> {
    while i.remaining() > 0 {
        let found = i.u16("field of a hello")?;
        let bytes = i.bytes("field of a hello")?;
        if found == tag::CAPABILITIES {
            let mut field = FieldReader::new(bytes);
            let capabilities = field.u32("capabilities")?;
            field.finish("capabilities")?;
            return Ok(capabilities);
        }
    }
    Ok(0)
}

fn get_folder(i: &mut FieldReader<'_>) -> Decoded<FolderWanted> {
    let at = i.position();
    Ok(match i.u8("kind of folder")? {
        0 => FolderWanted::None,
        1 => FolderWanted::Named {
            create: i.flag("whether to create the folder")?,
            name: i.text("folder")?,
        },
        2 => FolderWanted::Scratch,
        x => return Err(Damage::new("kind of folder", at, 2, x.into())),
    })
}

impl ClientHello {
    /// The hello as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        out.field(tag::TOKEN, |o| o.bytes(&self.token));
        out.field(tag::FOLDER, |o| match &self.folder {
            FolderWanted::None => o.u8(0),
            FolderWanted::Named { name, create } => {
                o.u8(1);
                o.flag(*create);
                o.bytes(name.as_bytes());
            }
            FolderWanted::Scratch => o.u8(2),
        });
        out.field(tag::HOST, |o| {
            o.bytes(beginning(&self.host, HOST_MAX_BYTES))
        });
        hello(VERSIONS, out)
    }

    /// Decodes a hello, and chooses the version that both sides use.
    ///
    /// # Errors
    /// [`WireError`]. After [`WireError::Version`] the server answers with a refusal.
    pub fn decode(bytes: &[u8]) -> Result<(u16, ClientHello), WireError> {
        let (theirs, mut i) = open(bytes)?;
        let common = theirs.1.min(VERSIONS.1);
        if common < theirs.0.max(VERSIONS.0) {
            let ours = VERSIONS;
            return Err(WireError::Version { theirs, ours });
        }
        let hello = ClientHello {
            token: i.field(tag::TOKEN, "token", |i| get_id(i, "token"))?,
            folder: i.field(tag::FOLDER, "folder", get_folder)?,
            host: i.field(tag::HOST, "host", |i| i.text("host"))?,
        };
        i.end("hello of a host")?;
        Ok((common, hello))
    }
}

impl ServerHello {
    /// The answer as bytes. `version` is the version that was chosen. A refusal has the server's
    /// range of versions instead.
    pub fn encode(&self, version: u16) -> Vec<u8> {
        let mut out = FieldWriter::new();
        match self {
            ServerHello::Refused(refusal) => {
                out.field(tag::REFUSED, |o| {
                    o.u8(code_of(refusal.kind));
                    o.bytes(beginning(&refusal.reason, REASON_MAX_BYTES));
                });
                hello(VERSIONS, out)
            }
            ServerHello::Welcome(welcome) => {
                out.field(tag::REFUSED, |o| o.u8(0));
                out.field(tag::STATE, |o| o.bytes(&welcome.state));
                out.field(tag::BOOT, |o| o.bytes(&welcome.boot));
                out.field(tag::DEVICE, |o| o.bytes(&welcome.device));
                let name = beginning(&welcome.name, NAME_MAX_BYTES);
                out.field(tag::NAME, |o| o.bytes(name));
                out.field(tag::LIMITS, |o| {
                    o.u32(welcome.slots.0);
                    o.u32(welcome.slots.1);
                    o.u64(welcome.open_objects_max);
                    o.u64(welcome.keep_bytes);
                });
                out.field(tag::CAPABILITIES, |o| o.u32(welcome.capabilities));
                hello((version, version), out)
            }
        }
    }

    /// Decodes an answer, and the version that the server chose. The fields are read only if there
    /// is a common version, because another version may have other fields.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<(u16, ServerHello), WireError> {
        let (theirs, mut i) = open(bytes)?;
        let ours = VERSIONS;
        if theirs.0 > ours.1 || theirs.1 < ours.0 {
            return Err(WireError::Version { theirs, ours });
        }
        let refused = i.field(tag::REFUSED, "refusal", |i| {
            Ok(match i.u8("class of a refusal")? {
                0 => None,
                code => Some(Refusal {
                    kind: kind_of(code),
                    reason: i.text("reason of a refusal")?,
                }),
            })
        })?;
        match refused {
            Some(refusal) => {
                return Ok((theirs.1.min(ours.1), ServerHello::Refused(refusal)));
            }
            // The server has chosen one version.
            None if theirs.0 == theirs.1 => {}
            None => return Err(WireError::Version { theirs, ours }),
        }
        let state = i.field(tag::STATE, "session state", |i| get_id(i, "session state"))?;
        let boot = i.field(tag::BOOT, "boot", |i| Ok(i.bytes("boot")?.to_vec()))?;
        let device = i.field(tag::DEVICE, "device's id", |i| get_id(i, "device's id"))?;
        let name = i.field(tag::NAME, "device", |i| i.text("device"))?;
        let welcome = i.field(tag::LIMITS, "limits", |i| {
            Ok(Welcome {
                state,
                boot,
                device,
                name,
                slots: (i.u32("slots")?, i.u32("subjobs at once")?),
                open_objects_max: i.u64("open objects")?,
                keep_bytes: i.u64("bytes to keep")?,
                capabilities: 0,
            })
        })?;
        let welcome = Welcome {
            capabilities: get_capabilities(i.clone())?,
            ..welcome
        };
        i.end("hello of a device")?;
        Ok((theirs.1, ServerHello::Welcome(welcome)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client() -> ClientHello {
        ClientHello {
            token: *b"0123456789abcdef",
            folder: FolderWanted::Named {
                name: "db".into(),
                create: true,
            },
            host: "box, pid 12".into(),
        }
    }

    fn welcome() -> ServerHello {
        ServerHello::Welcome(Welcome {
            state: *b"fedcba9876543210",
            boot: vec![1, 2, 3],
            device: *b"another16letters",
            name: "dpu0".into(),
            slots: (2, 4),
            open_objects_max: 1 << 10,
            keep_bytes: 1 << 25,
            capabilities: capability::FINISHED,
        })
    }

    fn refusal(reason: &str) -> ServerHello {
        ServerHello::Refused(Refusal {
            kind: StorageErrorKind::NotFound,
            reason: reason.into(),
        })
    }

    /// The bytes with other versions, and with a checksum that matches.
    fn with_versions(bytes: &[u8], versions: (u16, u16)) -> Vec<u8> {
        let mut bytes = bytes[..bytes.len() - 4].to_vec();
        bytes[8..10].copy_from_slice(&versions.0.to_le_bytes());
        bytes[10..12].copy_from_slice(&versions.1.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    #[test]
    fn hellos_are_read_as_they_are_written() {
        for folder in [FolderWanted::None, client().folder, FolderWanted::Scratch] {
            let hello = ClientHello { folder, ..client() };
            let bytes = hello.encode();
            assert_eq!(hello_len(bytes.first_chunk().unwrap()), Ok(bytes.len()));
            assert_eq!(ClientHello::decode(&bytes), Ok((1, hello)));
        }
        for hello in [welcome(), refusal("no such folder")] {
            assert_eq!(ServerHello::decode(&hello.encode(1)), Ok((1, hello)));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "aü".repeat(HELLO_MAX);
        let hello = ClientHello {
            host: long.clone(),
            ..client()
        };
        let (_, read) = ClientHello::decode(&hello.encode()).unwrap();
        assert!(long.starts_with(&read.host) && read.host.len() >= HOST_MAX_BYTES - 1);
        let ServerHello::Welcome(own) = welcome() else {
            panic!("it is a welcome");
        };
        let named = ServerHello::Welcome(Welcome {
            name: long.clone(),
            ..own
        });
        for hello in [named, refusal(&long)] {
            let bytes = hello.encode(1);
            assert!(bytes.len() <= HELLO_MAX, "{}", bytes.len());
            let (text, max_bytes) = match ServerHello::decode(&bytes).unwrap().1 {
                ServerHello::Welcome(welcome) => (welcome.name, NAME_MAX_BYTES),
                ServerHello::Refused(refusal) => (refusal.reason, REASON_MAX_BYTES),
            };
            assert!(long.starts_with(&text) && text.len() >= max_bytes - 1);
            assert!(text.len() <= max_bytes, "{} bytes", text.len());
        }
    }

    #[test]
    fn versions_that_do_not_meet_are_refused_by_name() {
        let bytes = client().encode();
        assert!(ClientHello::decode(&with_versions(&bytes, (1, 9))).is_ok());
        for theirs in [(2, 9), (0, 0), (5, 1)] {
            let error = ClientHello::decode(&with_versions(&bytes, theirs)).unwrap_err();
            let ours = VERSIONS;
            assert_eq!(error, WireError::Version { theirs, ours });
        }
        let bytes = with_versions(&welcome().encode(1), (2, 2));
        let error = ServerHello::decode(&bytes).unwrap_err();
        assert!(error.to_string().contains("versions 2 to 2"), "{error}");
        let refusal = refusal("go away").encode(1);
        let error = ServerHello::decode(&with_versions(&refusal, (3, 4))).unwrap_err();
        assert!(error.to_string().contains("versions 3 to 4"), "{error}");
    }

    #[test]
    fn another_protocol_is_told_from_a_broken_hello() {
        let error = hello_len(b"GET / HTTP/1.1\r\n").unwrap_err();
        assert!(
            error.to_string().contains("`GET / HTTP/1.1\\r\\n`"),
            "{error}"
        );
        let mut bytes = client().encode();
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = hello_len(bytes.first_chunk().unwrap()).unwrap_err();
        assert!(matches!(error, WireError::Damage(_)), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_hellos_are_refused(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            fix in any::<bool>(),
        ) {
            for (whole, is_client) in [(client().encode(), true), (welcome().encode(1), false)] {
                let mut bytes = whole.clone();
                let at = at.index(bytes.len());
                bytes[at] = byte;
                if fix && bytes.len() > 20 {
                    let end = bytes.len() - 4;
                    let crc = crc32c(&bytes[..end]);
                    bytes[end..].copy_from_slice(&crc.to_le_bytes());
                }
                // With a matching checksum there is no panic, whatever the result is.
                let is_refused = match is_client {
                    true => ClientHello::decode(&bytes).is_err(),
                    false => ServerHello::decode(&bytes).is_err(),
                };
                prop_assert!(fix || bytes == whole || is_refused);
                prop_assert!(ClientHello::decode(&whole[..at]).is_err());
                prop_assert!(ServerHello::decode(&whole[..at]).is_err());
            }
        }
    }
}

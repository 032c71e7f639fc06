//! Detects by its first bytes what an input is: its compression, its encoding, or a kind of file
//! that cannot be loaded.
//!
//! Invariants: the answers depend on the first [`SAMPLE_BYTES`] alone, not on the pieces in which
//! they arrive. An input that is recognised as something other than text is refused, never loaded
//! as noise.

/// The number of bytes that are examined.
pub const SAMPLE_BYTES: usize = 4 << 10;

/// The number of bytes that decide whether another member or frame follows.
pub const MAGIC_BYTES: usize = 4;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Whether a skippable frame of RFC 8878 begins here, and the length of its content if it is known.
fn skippable(start: &[u8]) -> Option<Option<u32>> {
    let [0x50..=0x5f, 0x2a, 0x4d, 0x18, rest @ ..] = start else {
        return None;
    };
    Some(rest.first_chunk().map(|len| u32::from_le_bytes(*len)))
}

/// Whether bytes begin like zstd: with a frame, or with skippable frames before it, as `pzstd`
/// writes them. lz4 has the same skippable frames, so the bytes after them decide, if they are in
/// the sample.
fn is_zstd(start: &[u8]) -> bool {
    let mut rest = start;
    let mut is_skipped = false;
    while let Some(len) = skippable(rest) {
        is_skipped = true;
        let len = len.and_then(|len| usize::try_from(len).ok()?.checked_add(8));
        rest = len.and_then(|len| rest.get(len..)).unwrap_or_default();
    }
    rest.starts_with(ZSTD) || is_skipped && !rest.starts_with(LZ4)
}

const LZ4: &[u8] = b"\x04\x22\x4d\x18";

/// A compression that `load` decompresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
}

impl Compression {
    /// The compression of bytes with this beginning.
    pub fn of(start: &[u8]) -> Option<Compression> {
        if start.starts_with(GZIP) {
            Some(Compression::Gzip)
        } else if is_zstd(start) {
            Some(Compression::Zstd)
        } else {
            None
        }
    }

    /// Whether bytes that follow a complete member or frame begin another one. `head` has at least
    /// [`MAGIC_BYTES`] bytes, or all that are left of the input; an input that ends within the
    /// first bytes of a member counts as one that begins it.
    pub fn goes_on(self, head: &[u8]) -> bool {
        let begins = |magic: &[u8]| {
            let len = magic.len().min(head.len());
            head[..len] == magic[..len]
        };
        match self {
            Compression::Gzip => begins(&GZIP[..2]),
            Compression::Zstd => begins(ZSTD) || skippable(head).is_some(),
        }
    }

    /// The name of the compression.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// An encoding of text that is converted to UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-16, the low byte first.
    Utf16Le,
    /// UTF-16, the high byte first.
    Utf16Be,
}

impl Encoding {
    /// The encoding that a byte-order mark announces, if the text must be converted.
    pub fn marked(start: &[u8]) -> Option<Encoding> {
        match start {
            [0xff, 0xfe, ..] => Some(Encoding::Utf16Le),
            [0xfe, 0xff, ..] => Some(Encoding::Utf16Be),
            _ => None,
        }
    }

    /// Its name for `iconv`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Utf16Le => "UTF-16LE",
            Encoding::Utf16Be => "UTF-16BE",
        }
    }

    /// The unit that two bytes make.
    pub fn unit(self, pair: [u8; 2]) -> u16 {
        match self {
            Encoding::Utf16Le => u16::from_le_bytes(pair),
            Encoding::Utf16Be => u16::from_be_bytes(pair),
        }
    }

    /// The encoding of text without a mark, if its zeros show it.
    fn unmarked(sample: &[u8]) -> Option<Encoding> {
        let (pairs, []) = sample.as_chunks::<2>() else {
            return None;
        };
        let zeros = |at: usize| pairs.iter().filter(|pair| pair[at] == 0).count();
        let (even, odd) = (zeros(0), zeros(1));
        let (encoding, most, least) = if odd > even {
            (Encoding::Utf16Le, odd, even)
        } else {
            (Encoding::Utf16Be, even, odd)
        };
        let mut has_line_feed = false;
        let units = pairs.iter().map(|pair| encoding.unit(*pair));
        for decoded in char::decode_utf16(units) {
            match decoded {
                Ok('\n') => has_line_feed = true,
                Ok(c) if c.is_control() && c != '\t' && c != '\r' => return None,
                Ok(_) => {}
                // Half a pair at the end of the sample may be complete in the text.
                Err(_) if pairs.len() * 2 == SAMPLE_BYTES => {}
                Err(_) => return None,
            }
        }
        // In most texts at least one of 32 characters is ASCII, even if the letters are not, and
        // line feeds have two bytes. Lines of bytes that contain zeros have neither.
        let (share, other) = match memchr::memchr(b'\n', sample) {
            Some(_) if !has_line_feed => return None,
            Some(_) => (32, 2),
            None => (2, 16),
        };
        (most > 0 && least * other <= most && most * share >= pairs.len()).then_some(encoding)
    }
}

/// A shell command that converts an input to text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convert {
    /// The command, with `FILE` in place of the input.
    pub command: String,
    /// Whether it can read the input from a pipe; then `-` replaces `FILE`.
    pub reads_pipe: bool,
}

impl Convert {
    /// A command that reads files and pipes.
    pub fn filter(command: impl Into<String>) -> Convert {
        Convert {
            command: command.into(),
            reads_pipe: true,
        }
    }

    /// The command that decompresses, for either of the two compressions.
    pub fn decompress(compression: Compression) -> Convert {
        Convert::filter(format!("{} -dc FILE", compression.name()))
    }

    /// The command that decodes and leaves out halves of characters.
    pub fn decode_whole(encoding: Encoding) -> Convert {
        Convert::filter(format!("iconv -c -f {} -t UTF-8 FILE", encoding.name()))
    }

    /// The command that decodes.
    pub fn decode(encoding: Encoding) -> Convert {
        Convert::filter(format!("iconv -f {} -t UTF-8 FILE", encoding.name()))
    }
}

/// Why an input is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the input is.
    pub what: String,
    /// What the input should be.
    pub expected: &'static str,
    /// The shell commands that convert it to text, in a pipe; none if it can be loaded without
    /// conversion with `--format`.
    pub convert: Vec<Convert>,
    /// The format that this gives, if it is not the input's own.
    pub format: Option<&'static str>,
    /// What the user must insert into the commands; empty if nothing.
    pub note: &'static str,
}

impl Refusal {
    fn of(what: &str, convert: Convert, format: Option<&'static str>) -> Refusal {
        Refusal {
            what: what.to_string(),
            expected: "text",
            convert: vec![convert],
            format,
            note: "",
        }
    }

    /// The refusal for an input that was decompressed and decoded in this way: the commands do this
    /// first.
    #[must_use]
    pub fn after(
        mut self,
        compression: Option<Compression>,
        encoding: Option<Encoding>,
    ) -> Refusal {
        if !self.convert.is_empty() {
            let first = compression.map(Convert::decompress);
            let first = first.into_iter().chain(encoding.map(Convert::decode));
            self.convert.splice(0..0, first);
        }
        self
    }
}

/// A kind of file that is not text.
struct Kind {
    /// The bytes by which it is recognised, and their offset.
    at: usize,
    magic: &'static [u8],
    what: &'static str,
    /// The command that converts it to text, see [`Convert`].
    command: &'static str,
    reads_pipe: bool,
    /// The format of that text, if it is not the input's own.
    format: Option<&'static str>,
    /// See [`Refusal::note`].
    note: &'static str,
}

impl Kind {
    /// A kind whose command can also read from a pipe.
    const fn filter(
        at: usize,
        magic: &'static [u8],
        what: &'static str,
        command: &'static str,
    ) -> Kind {
        Kind {
            at,
            magic,
            what,
            command,
            reads_pipe: true,
            format: None,
            note: "",
        }
    }

    /// A kind whose command needs a file.
    const fn file(magic: &'static [u8], what: &'static str, command: &'static str) -> Kind {
        Kind {
            reads_pipe: false,
            ..Kind::filter(0, magic, what, command)
        }
    }

    const fn with(mut self, format: Option<&'static str>, note: &'static str) -> Kind {
        self.format = format;
        self.note = note;
        self
    }

    fn refusal(&self) -> Refusal {
        let convert = Convert {
            command: self.command.to_string(),
            reads_pipe: self.reads_pipe,
        };
        Refusal {
            note: self.note,
            ..Refusal::of(self.what, convert, self.format)
        }
    }
}

/// The command that converts a spreadsheet by `ssconvert`.
const OFFICE: Kind = Kind::file(
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "an Office document",
    "ssconvert --export-type=Gnumeric_stf:stf_csv FILE fd://1",
)
.with(Some("csv"), "");

const KINDS: [Kind; 14] = [
    Kind::filter(0, b"\xfd7zXZ\0", "compressed with xz", "xz -dc FILE"),
    Kind::filter(4, b"1AY&SY", "compressed with bzip2", "bzip2 -dc FILE"),
    Kind::filter(
        4,
        b"\x17\x72\x45\x38\x50\x90",
        "compressed with bzip2",
        "bzip2 -dc FILE",
    ),
    Kind::filter(0, LZ4, "compressed with lz4", "lz4 -dc FILE"),
    Kind::filter(0, b"\x1f\x9d", "compressed with compress", "gzip -dc FILE"),
    Kind::file(b"PK\x03\x04", "a zip archive", "unzip -p FILE MEMBER").with(
        None,
        "with the name of one file in the archive for MEMBER (`unzip -l` lists them)",
    ),
    Kind::file(
        b"7z\xbc\xaf\x27\x1c",
        "a 7z archive",
        "7z e -so FILE MEMBER",
    )
    .with(
        None,
        "with the name of one file in the archive for MEMBER (`7z l` lists them)",
    ),
    Kind::filter(257, b"ustar", "a tar archive", "tar -xOf FILE MEMBER").with(
        None,
        "with the name of one file in the archive for MEMBER (`tar -tf` lists them)",
    ),
    Kind::file(
        b"PAR1",
        "a Parquet file",
        "duckdb -csv -c \"from read_parquet(FILE)\"",
    )
    .with(Some("csv"), ""),
    Kind::file(
        b"SQLite format 3\0",
        "an SQLite database",
        "sqlite3 -csv FILE 'select * from \"TABLE\"'",
    )
    .with(
        Some("csv"),
        "with the name of a table for TABLE (`sqlite3 FILE .tables` lists them)",
    ),
    OFFICE,
    Kind::filter(0, b"%PDF-", "a PDF", "pdftotext FILE -").with(Some("lines"), ""),
    Kind::filter(
        0,
        b"\xff\xfe\0\0",
        "UTF-32",
        "iconv -f UTF-32 -t UTF-8 FILE",
    ),
    Kind::filter(
        0,
        b"\0\0\xfe\xff",
        "UTF-32",
        "iconv -f UTF-32 -t UTF-8 FILE",
    ),
];

/// The first member of a spreadsheet, which is a zip archive.
const SPREADSHEET_PART: &[u8] = b"[Content_Types].xml";

/// The reason to refuse text that begins with this sample, if there is one. `is_guess` is set if
/// `--format` was not given. The sample of a compressed input is taken after decompression.
pub fn refused(sample: &[u8], is_guess: bool) -> Option<Refusal> {
    if let Some(twice) = Compression::of(sample) {
        let convert = Convert::decompress(twice);
        return Some(Refusal::of("compressed twice", convert, None));
    }
    let is_kind = |kind: &&Kind| {
        let found = sample.get(kind.at..);
        found.is_some_and(|s| s.starts_with(kind.magic))
            && (!kind.magic.starts_with(b"1AY") || sample.starts_with(b"BZh"))
    };
    if let Some(kind) = KINDS.iter().find(is_kind) {
        let is_spreadsheet =
            kind.magic == b"PK\x03\x04" && memchr::memmem::find(sample, SPREADSHEET_PART).is_some();
        return Some(if is_spreadsheet { &OFFICE } else { kind }.refusal());
    }
    if Encoding::marked(sample).is_some() {
        return None;
    }
    if let Some(encoding) = Encoding::unmarked(sample) {
        let what = format!("{} without a byte-order mark", encoding.name());
        return Some(Refusal::of(&what, Convert::decode(encoding), None));
    }
    if is_guess && memchr::memchr(0, sample).is_some() {
        return Some(Refusal {
            what: "binary data".to_string(),
            expected: "text",
            convert: Vec::new(),
            format: None,
            note: "",
        });
    }
    None
}

/// Refuses decoded text whose lines end in carriage returns alone, because it would be one line.
pub fn refused_lines(sample: &[u8]) -> Option<Refusal> {
    let returns = sample.iter().filter(|b| **b == b'\r').count();
    let is_one_line = memchr::memchr(b'\n', sample).is_none();
    (is_one_line && returns > 1).then(|| {
        Refusal::of(
            "text whose lines end in carriage returns alone",
            Convert::filter("tr '\\r' '\\n' < FILE"),
            None,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, encoding: Encoding) -> Vec<u8> {
        text.encode_utf16()
            .flat_map(|unit| match encoding {
                Encoding::Utf16Le => unit.to_le_bytes(),
                Encoding::Utf16Be => unit.to_be_bytes(),
            })
            .collect()
    }

    #[test]
    fn text_of_two_bytes_a_character_is_recognised() {
        for text in [
            "id,name\n1,Zoë\n2,Bob\n",
            "番号,名前\n一,山田太郎\n二,鈴木一郎上下\n",
            "one line",
            "😀,1\n😁,2\n",
        ] {
            for encoding in [Encoding::Utf16Le, Encoding::Utf16Be] {
                let bytes = utf16(text, encoding);
                let said = refused(&bytes, false).unwrap();
                assert!(said.what.contains(encoding.name()), "{text}: {said:?}");
                let mark = utf16("\u{feff}", encoding);
                assert_eq!(Encoding::marked(&mark), Some(encoding));
                assert_eq!(refused(&[mark, bytes].concat(), true), None, "{text}");
            }
            assert_eq!(refused(text.as_bytes(), true), None);
        }
    }

    /// The output of `pzstd` begins with a skippable frame, and was mistaken for binary data.
    #[test]
    fn skippable_frames_are_zstd() {
        let skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size";
        for (rest, expected) in [
            (ZSTD, Some(Compression::Zstd)),
            (b"", Some(Compression::Zstd)),
            (LZ4, None),
        ] {
            for times in 1..3 {
                let start = [&skipped.repeat(times)[..], rest].concat();
                assert_eq!(Compression::of(&start), expected, "{rest:?}");
            }
        }
        assert_eq!(Compression::of(&skipped[..5]), Some(Compression::Zstd));
        assert_eq!(Compression::of(b"\x60\x2a\x4d\x18"), None);
        let long = b"\x5f\x2a\x4d\x18\xff\xff\xff\xff";
        assert_eq!(Compression::of(long), Some(Compression::Zstd));
    }

    #[test]
    fn lines_of_bytes_are_none() {
        for text in [
            &b"abc\0d\nabc\0d\n"[..],
            b"\0\0\n\n",
            b"k\0\xff\n",
            b"a\0b",
            b"\0",
        ] {
            assert_eq!(refused(text, false), None, "{text:?}");
            assert!(refused(text, true).unwrap().what.contains("binary"));
        }
        for text in [
            &b""[..],
            b"a",
            b"a\n",
            b"\xff\n",
            b"BZhang\n",
            b"BZh91",
            b"PK\n",
        ] {
            assert_eq!(refused(text, true), None, "{text:?}");
        }
    }

    #[test]
    fn lines_that_end_in_carriage_returns_are_refused() {
        assert!(refused_lines(b"a,1\rb,2\rc,3").is_some());
        for text in [&b"a\rb"[..], b"a\r\nb\r\n", b"a\rb\rc\n", b""] {
            assert_eq!(refused_lines(text), None);
        }
    }
}

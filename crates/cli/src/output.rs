//! Output: bytes as text or escapes, and numbers in a readable form.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use console::truncate_str;
use indicatif::HumanCount;

use crate::failure::Failure;

/// Buffered standard output. Call [`Out::finish`] at the end.
pub struct Out {
    out: io::BufWriter<StdoutLock<'static>>,
    /// The text of the screen, if the output is a live screen.
    screen: Option<String>,
}

impl Out {
    /// Standard output.
    pub fn new() -> Out {
        Out {
            out: io::BufWriter::with_capacity(64 << 10, io::stdout().lock()),
            screen: None,
        }
    }

    /// The screen of a terminal. The written text becomes its whole content, cut to its size.
    pub fn screen() -> Out {
        Out {
            screen: Some(String::new()),
            ..Out::new()
        }
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|e| Failure::output(&e))
    }

    /// Writes text.
    pub fn text(&mut self, text: fmt::Arguments<'_>) -> Result<(), Failure> {
        match &mut self.screen {
            Some(screen) => screen
                .write_fmt(text)
                .map_err(|_| Failure::Other("formatting failed".to_string())),
            None => self.out.write_fmt(text).map_err(|e| Failure::output(&e)),
        }
    }

    /// Writes everything to standard output.
    pub fn finish(mut self) -> Result<(), Failure> {
        if let Some(screen) = self.screen.take() {
            let size = rustix::termios::tcgetwinsize(io::stdout());
            let size = size.map_or((0, 0), |s| (s.ws_row, s.ws_col));
            self.raw(fit(&screen, size.0.into(), size.1.into()).as_bytes())?;
        }
        self.out.flush().map_err(|e| Failure::output(&e))
    }
}

/// Writes a formatted line to an [`Out`].
macro_rules! outln {
    ($out:expr) => { $out.text(format_args!("\n")) };
    ($out:expr, $($arg:tt)*) => { $out.text(format_args!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use outln;

/// Whether standard output is a terminal.
pub fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The text as the whole content of a terminal with these numbers of rows and columns (0: unknown).
/// Only what is not overwritten is cleared, so that nothing flickers.
fn fit(text: &str, rows: usize, columns: usize) -> String {
    let (rows, columns) = (
        if rows == 0 { 24 } else { rows },
        if columns == 0 { 80 } else { columns },
    );
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let shown = if lines.len() < rows {
        lines.len()
    } else {
        rows.saturating_sub(2)
    };
    let mut screen = "\x1b[H".to_string();
    for line in &lines[..shown] {
        screen.push_str(&truncate_str(line, columns, ""));
        screen.push_str("\x1b[K\n");
    }
    if shown < lines.len() {
        let hidden = format!(
            "({} more lines; a taller window shows them)",
            lines.len() - shown
        );
        screen.push_str(&truncate_str(&hidden, columns, ""));
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    screen
}

/// Asks on the terminal whether to do something that is irreversible.
///
/// # Errors
/// The answer is no, or there is no terminal and `yes` was not given.
pub fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Usage(format!(
            "cannot ask \"{question}\" without a terminal; --yes answers it"
        )));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|e| Failure::io("standard input", &e))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Other("nothing was changed".to_string())),
    }
}

/// Appends bytes as hexadecimal digits.
pub fn push_hex(line: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        line.extend([
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

fn push_escape(line: &mut Vec<u8>, byte: u8) {
    match byte {
        b'\\' => line.extend(b"\\\\"),
        b'\t' => line.extend(b"\\t"),
        b'\n' => line.extend(b"\\n"),
        _ => {
            line.extend(b"\\x");
            push_hex(line, &[byte]);
        }
    }
}

/// Appends bytes as text. UTF-8 is printed as it is, except that backslashes and control characters
/// are escaped. Of other bytes, everything but printable ASCII is escaped.
pub fn push_text(line: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            for c in text.chars() {
                let mut buffer = [0; 4];
                let encoded = c.encode_utf8(&mut buffer).as_bytes();
                if c == '\\' || c.is_control() {
                    encoded.iter().for_each(|byte| push_escape(line, *byte));
                } else {
                    line.extend(encoded);
                }
            }
        }
        Err(_) => {
            for &byte in bytes {
                match byte {
                    b'\\' => push_escape(line, byte),
                    0x20..=0x7e => line.push(byte),
                    _ => push_escape(line, byte),
                }
            }
        }
    }
}

/// The name of a keyspace on one line. Its control characters are escaped.
pub fn one_line(name: &str) -> Cow<'_, str> {
    if !name.contains(char::is_control) {
        return Cow::Borrowed(name);
    }
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(name.chars().map(escaped).collect())
}

/// A number with its digits in groups.
pub fn count(n: u64) -> String {
    HumanCount(n).to_string()
}

/// `n things`, or `1 thing`.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A number of bytes in a suitable unit.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number of nanoseconds in a suitable unit.
pub fn nanos(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} ns"),
        1_000..1_000_000 => format!("{:.1} us", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", n as f64 / 1e6),
        _ => format!("{:.2} s", n as f64 / 1e9),
    }
}

/// A duration in a suitable unit.
pub fn duration(d: Duration) -> String {
    nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// The rate of `n` things in this time, per second.
pub fn rate(n: u64, time: Duration) -> String {
    let rate = n as f64 / time.as_secs_f64().max(1e-9);
    match rate {
        r if r >= 1e6 => format!("{:.2} million", r / 1e6),
        r => count(r as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut line = Vec::new();
        push_text(&mut line, bytes);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn text_is_text_and_bytes_are_escaped() {
        assert_eq!(text("Grüße, 世界".as_bytes()), "Grüße, 世界");
        assert_eq!(text(b"a\tb\nc\\d\0"), "a\\tb\\nc\\\\d\\x00");
        assert_eq!(text(b"\xffab\xc3"), "\\xffab\\xc3");
        // A control character beyond ASCII.
        assert_eq!(text("\u{85}".as_bytes()), "\\xc2\\x85");
    }

    #[test]
    fn a_screen_is_never_longer_than_its_window() {
        let text = (0..30).map(|i| format!("line {i}\n")).collect::<String>();
        assert_eq!(fit("ab\ncd\n", 10, 1), "\x1b[Ha\x1b[K\nc\x1b[K\n\x1b[J");
        // Each of these characters takes two columns.
        assert_eq!(fit("世界\n", 10, 3), "\x1b[H世\x1b[K\n\x1b[J");
        for rows in 0..40 {
            let shown = fit(&text, rows, 80);
            let height = if rows == 0 { 24 } else { rows };
            assert!(shown.matches('\n').count() < height.max(2), "{rows}");
            assert_eq!(shown.contains("more lines"), height <= 30, "{rows}");
        }
        assert!(fit(&text, 10, 80).contains("(22 more lines;"));
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [count(0), count(999), count(1000), count(1234567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [bytes(1023), bytes(1024), bytes(1 << 30)],
            ["1023 B", "1.0 KiB", "1.0 GiB"]
        );
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(
            [nanos(999), nanos(1_500), nanos(2_000_000)],
            ["999 ns", "1.5 us", "2.0 ms"]
        );
        assert_eq!(plural(1, "table"), "1 table");
        assert_eq!(plural(2000, "table"), "2,000 tables");
    }
}

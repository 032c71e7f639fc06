//! `silt scan`: pairs in key order; and the printer of pairs.

use super::{bounds, open_keyspace};
use crate::args::{FormArgs, ScanArgs};
use crate::failure::{Failure, Outcome};
use crate::form::{Form, push_json_bytes};
use crate::output::{Out, on_terminal, plural, push_text};

/// Rows that are looked at for the widths of columns before any is printed.
const MEASURED_ROWS: usize = 100;

/// Runs the command.
pub fn run(args: &ScanArgs) -> Result<Outcome, Failure> {
    let options = bounds(&args.range, &args.form.key(), !args.keys)?;
    let (store, keyspace) = open_keyspace(&args.store)?;
    let mut out = Out::new();
    let mut printer = Printer::new(&args.form, args.json);
    printer.marks = true;
    let mut cursor = keyspace.cursor(options)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    if left > 0 {
        if args.reverse {
            cursor.seek_to_last()?
        } else {
            cursor.seek_to_first()?
        }
    }
    let result = loop {
        if !cursor.valid() || left == 0 {
            break Ok(());
        }
        let value = (!args.keys).then(|| cursor.value());
        if let Err(failure) = printer.pair(&mut out, Some(cursor.key()), value) {
            break Err(failure);
        }
        left -= 1;
        let moved = if args.reverse {
            cursor.prev()
        } else {
            cursor.next()
        };
        if let Err(error) = moved {
            break Err(error.into());
        }
    };
    // What could be read is printed, whatever came then.
    printer.finish(&mut out)?;
    out.finish()?;
    result?;
    drop(cursor);
    store.close()?;
    if printer.marked == 0 {
        return Ok(Outcome::Fine);
    }
    eprintln!(
        "silt: {} no JSON; a member `value_is_json` (or `key_is_json`) that is false marks them",
        match printer.marked {
            1 => "1 pair has a key or value that is".to_string(),
            n => format!("{} have a key or value that is", plural(n, "pair")),
        }
    );
    Ok(Outcome::NoJson)
}

/// Prints pairs: as lines with tabs, as columns for people where a layout gives them names, or as JSON.
pub struct Printer {
    key: Form,
    value: Form,
    json: bool,
    /// Whether what should be JSON and is none is printed as text and marked; else it is an error.
    pub marks: bool,
    /// Pairs that were marked.
    pub marked: u64,
    /// Present if columns are printed.
    table: Option<Table>,
    line: Vec<u8>,
}

impl Printer {
    /// A printer for these forms.
    pub fn new(form: &FormArgs, json: bool) -> Printer {
        let (key, value) = (form.key(), form.value());
        let columns = [&key, &value].iter().any(|f| matches!(f, Form::Layout(_)));
        Printer {
            table: (columns && !json && on_terminal()).then(Table::default),
            key,
            value,
            json,
            marks: false,
            marked: 0,
            line: Vec::new(),
        }
    }

    /// Prints a pair, or a key or a value alone.
    ///
    /// # Errors
    /// It does not fit its form; the output is closed.
    pub fn pair(
        &mut self,
        out: &mut Out,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), Failure> {
        self.line.clear();
        if self.json {
            self.json(key, value)?;
            return out.raw(&self.line);
        }
        if let Some(bytes) = key {
            let pushed = self.key.push(&mut self.line, bytes);
            pushed.map_err(|why| misfit("key", bytes, "--key-as", &why))?;
        }
        if let Some(bytes) = value {
            if key.is_some() {
                self.line.push(b'\t');
            }
            let pushed = self.value.push(&mut self.line, bytes);
            pushed
                .map_err(|why| misfit("value of", key.unwrap_or_default(), "--value-as", &why))?;
        }
        match &mut self.table {
            Some(table) => {
                if table.names.is_empty() {
                    if key.is_some() {
                        table
                            .names
                            .extend(self.key.columns("key").iter().map(|n| n.to_string()));
                    }
                    if value.is_some() {
                        let names = self.value.columns("value");
                        table.names.extend(names.iter().map(|n| n.to_string()));
                    }
                }
                table.row(out, String::from_utf8_lossy(&self.line).into_owned())
            }
            None => {
                self.line.push(b'\n');
                out.raw(&self.line)
            }
        }
    }

    fn json(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), Failure> {
        let line = &mut self.line;
        let marks = self.marks;
        // The text of the bytes with a mark, if they should be JSON and are none.
        let push = |form: &Form, line: &mut Vec<u8>, bytes: &[u8], mark: &str| {
            match form.push_json(line, bytes) {
                // Nothing is pushed of what is no JSON.
                Err(_) if marks && *form == Form::Json => {
                    push_json_bytes(line, bytes);
                    line.extend_from_slice(format!(",\"{mark}\":false").as_bytes());
                    Ok(true)
                }
                pushed => pushed.map(|()| false),
            }
        };
        let mut is_marked = false;
        line.push(b'{');
        if let Some(bytes) = key {
            line.extend_from_slice(b"\"key\":");
            is_marked |= push(&self.key, line, bytes, "key_is_json")
                .map_err(|why| misfit("key", bytes, "--key-as", &why))?;
        }
        if let Some(bytes) = value {
            if key.is_some() {
                line.push(b',');
            }
            line.extend_from_slice(b"\"value\":");
            is_marked |= push(&self.value, line, bytes, "value_is_json")
                .map_err(|why| misfit("value of", key.unwrap_or_default(), "--value-as", &why))?;
        }
        line.extend_from_slice(b"}\n");
        self.marked += u64::from(is_marked);
        Ok(())
    }

    /// Prints what is held back. Must be called.
    ///
    /// # Errors
    /// The output is closed.
    pub fn finish(&mut self, out: &mut Out) -> Result<(), Failure> {
        match &mut self.table {
            Some(table) => table.flush(out),
            None => Ok(()),
        }
    }
}

fn misfit(what: &str, key: &[u8], flag: &str, why: &str) -> Failure {
    let mut shown = Vec::new();
    push_text(&mut shown, &key[..key.len().min(80)]);
    Failure::Other(format!(
        "the {what} `{}` does not fit {flag}: {why}; {flag} hex shows it as it is",
        String::from_utf8_lossy(&shown)
    ))
}

/// Rows as columns of even width, numbers on the right.
#[derive(Default)]
struct Table {
    names: Vec<String>,
    /// Held back until the widths are known.
    rows: Vec<String>,
    widths: Vec<usize>,
    /// Whether all cells of a column so far are numbers.
    numbers: Vec<bool>,
}

impl Table {
    fn row(&mut self, out: &mut Out, row: String) -> Result<(), Failure> {
        self.rows.push(row);
        if self.widths.is_empty() && self.rows.len() < MEASURED_ROWS {
            return Ok(());
        }
        self.flush(out)
    }

    fn flush(&mut self, out: &mut Out) -> Result<(), Failure> {
        if self.widths.is_empty() {
            if self.rows.is_empty() {
                return Ok(());
            }
            self.widths = self.names.iter().map(|n| n.chars().count()).collect();
            self.numbers = vec![true; self.names.len()];
            for row in &self.rows {
                for (i, cell) in row.split('\t').enumerate() {
                    if let Some(width) = self.widths.get_mut(i) {
                        *width = cell.chars().count().max(*width);
                        self.numbers[i] &= cell.parse::<f64>().is_ok();
                    }
                }
            }
            let names = self.names.join("\t");
            self.print(out, &names)?;
        }
        for row in std::mem::take(&mut self.rows) {
            self.print(out, &row)?;
        }
        Ok(())
    }

    fn print(&self, out: &mut Out, row: &str) -> Result<(), Failure> {
        let mut line = String::new();
        for (i, cell) in row.split('\t').enumerate() {
            if i > 0 {
                line.push_str("  ");
            }
            let width = self.widths.get(i).copied().unwrap_or(0);
            if self.numbers.get(i) == Some(&true) {
                line.push_str(&format!("{cell:>width$}"));
            } else {
                line.push_str(&format!("{cell:<width$}"));
            }
        }
        out.text(format_args!("{}\n", line.trim_end()))
    }
}

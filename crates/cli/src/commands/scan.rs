//! `silt scan`: prints pairs in key order. Other commands use its printer of pairs.

use console::{Alignment, measure_text_width, pad_str};

use super::{bounds, open_keyspace};
use crate::args::{FormArgs, ScanArgs};
use crate::failure::{Failure, Outcome};
use crate::form::{Form, push_json_bytes};
use crate::output::{Out, on_terminal, outln, plural, push_text};

/// The number of rows whose widths are measured before the first one is printed.
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
    // The pairs that could be read are printed, whatever failed after them.
    printer.finish(&mut out)?;
    out.finish()?;
    result?;
    drop(cursor);
    store.close()?;
    if printer.marked == 0 {
        return Ok(Outcome::Fine);
    }
    eprintln!(
        "silt: {} not JSON; the member `value_is_json` (or `key_is_json`) of such pairs is false",
        match printer.marked {
            1 => "1 pair has a key or value that is".to_string(),
            n => format!("{} have a key or value that is", plural(n, "pair")),
        }
    );
    Ok(Outcome::NoJson)
}

/// Prints pairs: as lines with tabs, as columns with names if there is a layout, or as JSON.
pub struct Printer {
    key: Form,
    value: Form,
    json: bool,
    /// If set, bytes that should be JSON and are not are printed as text and marked. Otherwise they
    /// are an error.
    pub marks: bool,
    /// The number of pairs that were marked.
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
    /// The bytes do not fit their form; the output is closed.
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
                    let key = key.map(|_| self.key.columns("key"));
                    let value = value.map(|_| self.value.columns("value"));
                    let names = key.into_iter().chain(value).flatten();
                    table.names.extend(names.map(|name| name.to_string()));
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
        // If the bytes should be JSON and are not, then they are printed as text with a mark.
        let push = |form: &Form, line: &mut Vec<u8>, bytes: &[u8], mark: &str| {
            match form.push_json(line, bytes) {
                // Nothing of these bytes was pushed, because they are not JSON.
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

    /// Prints the rows that are held back. It must be called at the end.
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
        "the {what} `{}` does not fit {flag}: {why}; {flag} hex prints its bytes",
        String::from_utf8_lossy(&shown)
    ))
}

/// Prints rows with aligned columns. Columns of numbers are aligned on the right.
#[derive(Default)]
struct Table {
    names: Vec<String>,
    /// The rows that are held back until the widths are known.
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
            self.measure();
            outln!(out, "{}", self.line(&self.names.join("\t")))?;
        }
        for row in std::mem::take(&mut self.rows) {
            outln!(out, "{}", self.line(&row))?;
        }
        Ok(())
    }

    /// Takes the widths of columns, and whether they hold numbers, from the rows held back.
    fn measure(&mut self) {
        self.widths = self.names.iter().map(|n| measure_text_width(n)).collect();
        self.numbers = vec![true; self.names.len()];
        for row in &self.rows {
            for (i, cell) in row.split('\t').enumerate() {
                if let Some(width) = self.widths.get_mut(i) {
                    *width = measure_text_width(cell).max(*width);
                    self.numbers[i] &= cell.parse::<f64>().is_ok();
                }
            }
        }
    }

    /// A row with its cells padded to the widths of their columns.
    fn line(&self, row: &str) -> String {
        let mut line = String::new();
        for (i, cell) in row.split('\t').enumerate() {
            if i > 0 {
                line.push_str("  ");
            }
            let width = self.widths.get(i).copied().unwrap_or(0);
            let align = match self.numbers.get(i) {
                Some(true) => Alignment::Right,
                _ => Alignment::Left,
            };
            line.push_str(&pad_str(cell, width, align, None));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_on_a_terminal() {
        let mut table = Table {
            names: ["id", "name"].map(String::from).to_vec(),
            rows: ["1\ta", "234\t世界世"].map(String::from).to_vec(),
            ..Table::default()
        };
        table.measure();
        // Each of the three characters takes two columns.
        assert_eq!(
            (&table.widths[..], &table.numbers[..]),
            (&[3, 6][..], &[true, false][..])
        );
        assert_eq!(table.line("id\tname"), " id  name");
        assert_eq!(table.line("1\ta"), "  1  a");
        assert_eq!(table.line("234\t世界世"), "234  世界世");
        // Rows after those that were measured may be wider or have more cells.
        assert_eq!(table.line("23456\tb\tmore"), "23456  b       more");
    }
}

//! The list of planted faults, as `crates/storage/src/planted.rs` has it.

use std::path::Path;

/// The file with the list.
pub const LIST: &str = "crates/storage/src/planted.rs";

/// A fault of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub number: u32,
    /// The name of its `Bug`.
    pub name: String,
    pub breaks: String,
    /// The reason why no row can catch it, for a fault that only a story of its own can catch.
    pub not_for_rows: Option<String>,
}

/// All faults, in the order of the list.
///
/// # Errors
/// If the list cannot be read.
pub fn read(root: &Path) -> Result<Vec<Fault>, String> {
    let source = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    Ok(faults(&source))
}

/// Parses the list of faults in the source.
fn faults(source: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    // An entry may take several lines: it begins with a number and ends with a semicolon.
    let mut entry = String::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            entry = line.to_string();
        } else if !entry.is_empty() {
            entry = format!("{entry} {line}");
        }
        if line.ends_with(';') {
            faults.extend(fault_of(&entry));
            entry.clear();
        }
    }
    faults
}

/// `7 Name "what it breaks" not for rows: "why";`
fn fault_of(entry: &str) -> Option<Fault> {
    let (number, rest) = entry.split_once(' ')?;
    let (name, rest) = rest.split_once(" \"")?;
    let (breaks, rest) = rest
        .strip_suffix("\";")?
        .split_once("\" not for rows: \"")
        .map_or_else(
            || (rest.strip_suffix("\";").unwrap_or(rest), None),
            |(breaks, why)| (breaks, Some(why)),
        );
    Some(Fault {
        number: number.parse().ok()?,
        name: name.to_string(),
        breaks: breaks.to_string(),
        not_for_rows: rest.map(String::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_and_has_every_number_once() {
        let source = std::fs::read_to_string(crate::root().join(LIST)).unwrap();
        let all = faults(&source);
        let mut numbers: Vec<u32> = all.iter().map(|f| f.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
        let for_rows = all.iter().filter(|f| f.not_for_rows.is_none());
        assert!(for_rows.count() >= 40);
        // Every line of the list was parsed.
        let list = source.split_once("\nbugs! {\n").unwrap().1;
        let lines = list.split_once("\n}").unwrap().0.lines();
        assert_eq!(lines.filter(|l| l.ends_with(';')).count(), all.len());
    }

    #[test]
    fn lines_of_the_list() {
        let fault = fault_of("7 Name \"what, it: breaks\";").unwrap();
        assert_eq!((fault.number, &fault.name[..]), (7, "Name"));
        assert_eq!(
            (&fault.breaks[..], fault.not_for_rows),
            ("what, it: breaks", None)
        );
        let fault = fault_of("8 Name \"x\" not for rows: \"no, never\";").unwrap();
        assert_eq!(
            (&fault.breaks[..], fault.not_for_rows.as_deref()),
            ("x", Some("no, never"))
        );
        assert_eq!(fault_of("pub enum Bug {"), None);
        let broken = "    // A comment.\n    7 Name\n        \"x\"\n        not for rows: \"y\";\n";
        let [fault] = &faults(broken)[..] else {
            panic!("one fault is listed");
        };
        assert_eq!(
            (
                fault.number,
                &fault.breaks[..],
                fault.not_for_rows.as_deref()
            ),
            (7, "x", Some("y"))
        );
    }
}

//! Writes the page of records that are in files of JSON lines, one record a line:
//! `cargo run -p siltstone-bench --example page -- FILE.html RECORDS.jsonl...`

use std::error::Error;
use std::fs;

use siltstone_bench::page::page;
use siltstone_bench::record::Record;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .ok_or("name the page's file, and then the files of records")?;
    let mut records = Vec::new();
    for name in arguments {
        let text = fs::read_to_string(&name).map_err(|e| format!("{name}: {e}"))?;
        for (n, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.is_empty())
        {
            let record = Record::from_json(line);
            records.push(record.map_err(|e| format!("{name}, line {}: {e}", n + 1))?);
        }
    }
    fs::write(&file, page(&records, "Benchmark")).map_err(|e| format!("{file}: {e}"))?;
    Ok(())
}

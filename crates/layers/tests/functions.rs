//! No function is too long to be read at once.

use std::path::Path;

use siltstone_layers::functions::{LONGEST_FUNCTION, functions};
use siltstone_layers::{CRATES, Sources};

#[test]
fn no_function_is_longer_than_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut too_long = Vec::new();
    for (name, file) in CRATES {
        let all = functions(&Sources::read(&root.join(file)).unwrap());
        assert!(!all.is_empty(), "no function found in crate {name}");
        for function in all.iter().filter(|f| f.lines > LONGEST_FUNCTION) {
            too_long.push(format!(
                "crate {name}, {}:{} `{}`: {} lines, at most {LONGEST_FUNCTION} are allowed",
                function.file, function.line, function.name, function.lines
            ));
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

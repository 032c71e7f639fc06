//! The nearest known name to a misspelt one, for error messages.

/// The candidate that is most similar to `name`, if any is similar enough to be what was meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase().replace('_', "-");
    candidates
        .into_iter()
        .map(|candidate| {
            let plain = candidate.to_lowercase().replace('_', "-");
            (strsim::damerau_levenshtein(&name, &plain), candidate)
        })
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn transposed_letters_and_other_separators_are_found() {
        let names = ["value_bytes", "key_bytes", "records"];
        assert_eq!(nearest("vaule_bytes", names), Some("value_bytes"));
        assert_eq!(nearest("Key-Bytes", names), Some("key_bytes"));
        assert_eq!(nearest("record", names), Some("records"));
    }

    #[test]
    fn a_name_that_is_like_none_has_no_nearest() {
        assert_eq!(nearest("colour", ["value_bytes", "records"]), None);
        assert_eq!(nearest("x", []), None);
    }
}

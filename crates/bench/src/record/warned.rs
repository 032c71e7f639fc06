//! The warnings of several records in few sentences.
//!
//! Threading: pure functions.

/// Warnings that say the same but for their numbers.
struct Alike<'a, T> {
    lowest: Vec<&'a str>,
    highest: Vec<&'a str>,
    places: Vec<T>,
}

/// Each warning once, in the order in which they come, with the places that have it. Warnings that
/// differ only in their numbers are one, which has the range of each number.
pub(crate) fn merged<'a, T>(all: impl IntoIterator<Item = (T, &'a str)>) -> Vec<(String, Vec<T>)> {
    let mut found: Vec<Alike<'a, T>> = Vec::new();
    for (place, text) in all {
        let pieces = pieces(text);
        match found
            .iter_mut()
            .find(|known| is_alike(&known.lowest, &pieces))
        {
            Some(known) => known.add(place, pieces),
            None => found.push(Alike {
                lowest: pieces.clone(),
                highest: pieces,
                places: vec![place],
            }),
        }
    }
    found.into_iter().map(Alike::into_text).collect()
}

impl<'a, T> Alike<'a, T> {
    fn add(&mut self, place: T, pieces: Vec<&'a str>) {
        self.places.push(place);
        for (position, piece) in pieces.into_iter().enumerate() {
            if number(piece) < number(self.lowest[position]) {
                self.lowest[position] = piece;
            }
            if number(piece) > number(self.highest[position]) {
                self.highest[position] = piece;
            }
        }
    }

    fn into_text(self) -> (String, Vec<T>) {
        let pairs = self.lowest.iter().zip(&self.highest);
        let texts = pairs.map(|(lowest, highest)| match lowest == highest {
            true => lowest.to_string(),
            false => format!("{lowest} to {highest}"),
        });
        (texts.collect(), self.places)
    }
}

/// Whether two warnings have numbers in the same positions, and the same text around them.
fn is_alike(a: &[&str], b: &[&str]) -> bool {
    let is_equal = |(a, b): (&&str, &&str)| a == b || (number(a).is_some() && number(b).is_some());
    a.len() == b.len() && a.iter().zip(b).all(is_equal)
}

/// The value of a piece that is a number.
fn number(piece: &str) -> Option<f64> {
    let begins = piece.starts_with(|c: char| c.is_ascii_digit());
    let plain = piece.replace(',', "");
    plain.parse().ok().filter(|_| begins)
}

/// Cuts a text so that each number is a piece of its own. Digits in a word are part of the word.
fn pieces(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let bytes = match number_bytes(rest) {
            0 => bytes_before_number(rest),
            bytes => bytes,
        };
        let (piece, after) = rest.split_at(bytes);
        found.push(piece);
        rest = after;
    }
    found
}

/// The length of the number with which a text begins, with its commas and its decimals. 0 if it
/// begins with something else.
fn number_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |position: usize| bytes.get(position).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while is_digit(end)
        || (end > 0 && matches!(bytes.get(end), Some(b'.' | b',')) && is_digit(end + 1))
    {
        end += 1;
    }
    end
}

/// The length of what stands before the first number of a text that begins with something else.
fn bytes_before_number(text: &str) -> usize {
    let mut is_in_word = false;
    for (position, c) in text.char_indices() {
        if c.is_ascii_digit() && !is_in_word {
            return position;
        }
        is_in_word = c.is_alphanumeric() || c == '_';
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_differ_in_their_numbers_are_one() {
        let all = [
            (1, "The engine compacted 1,200 bytes in 3.5 s."),
            (2, "The engine compacted 99 bytes in 12 s."),
            (3, "It compacted 99 bytes."),
            (4, "The engine compacted 7000 bytes in 4 s."),
        ];
        assert_eq!(
            merged(all),
            [
                (
                    "The engine compacted 99 to 7000 bytes in 3.5 to 12 s.".into(),
                    vec![1, 2, 4]
                ),
                ("It compacted 99 bytes.".into(), vec![3]),
            ]
        );
        assert!(merged(std::iter::empty::<((), &str)>()).is_empty());
    }

    #[test]
    fn digits_in_words_and_versions_are_no_numbers() {
        let all = ["l0_stop", "l1_stop", "1.2.3", "1.2.4", "", "µ2"].map(|text| ((), text));
        assert_eq!(merged(all).len(), 6);
        assert_eq!(pieces("12ab34 µ 5,6,"), ["12", "ab34 µ ", "5,6", ","]);
    }
}

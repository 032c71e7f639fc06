//! The error of a text that a setting cannot be read from.

use std::borrow::Cow;

use crate::settings::nearest::nearest;

/// Why a text is no value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// The text.
    pub found: String,
    /// What the setting accepts.
    pub expected: Cow<'static, str>,
    /// The word that may have been meant.
    pub nearest: Option<&'static str>,
}

impl TextError {
    /// The error of a text that is not of the expected form.
    pub fn new(found: &str, expected: impl Into<Cow<'static, str>>) -> TextError {
        TextError {
            found: found.into(),
            expected: expected.into(),
            nearest: None,
        }
    }

    /// The error of a text that is none of these words.
    pub(in crate::settings) fn no_word(found: &str, words: &[&'static str]) -> TextError {
        TextError::new(found, one_of(words)).with_nearest(words)
    }

    /// With the most similar of these words, if one is similar.
    pub(super) fn with_nearest(mut self, words: &[&'static str]) -> TextError {
        let word = self.found.split(':').next().unwrap_or_default();
        self.nearest = nearest(word, words.iter().copied()).filter(|nearest| *nearest != word);
        self
    }
}

/// The words as a list for people.
fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_string(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

impl std::fmt::Display for TextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "found `{}`, expected {}", self.found, self.expected)?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TextError {}

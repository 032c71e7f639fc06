//! A table of a TOML file, whose keys are all known and whose values have the expected types.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Number;
use super::error::{ExperimentError, Source, did_you_mean};
use crate::settings::nearest;

type Read<T> = Result<T, ExperimentError>;

/// A key or a value with its position.
pub(crate) type At<T> = (T, Range<usize>);

/// A table and how messages name it, for example `[paper]`.
#[derive(Clone)]
pub(crate) struct Section<'a> {
    pub source: Source<'a>,
    pub name: String,
    pub span: Range<usize>,
    pub table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    pub fn error(&self, span: Range<usize>, message: impl Into<String>) -> ExperimentError {
        self.source.error(span, message)
    }

    /// Refuses all keys but these.
    pub fn refuse_others(&self, known: &[&str]) -> Read<()> {
        let unknown = |key: &&Spanned<DeString<'_>>| !known.contains(&key.get_ref().as_ref());
        match self.table.keys().find(unknown) {
            Some(key) => Err(self.unknown(key, known)),
            None => Ok(()),
        }
    }

    /// The error of a key that is none of these.
    pub fn unknown(&self, key: &Spanned<DeString<'_>>, known: &[&str]) -> ExperimentError {
        let name = key.get_ref().as_ref();
        let nearest = did_you_mean(nearest(name, known.iter().copied()));
        let message = format!("unknown key `{name}` in {}{nearest}", self.name);
        self.error(key.span(), message)
    }

    pub fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    /// The error of a value of another type.
    pub fn wrong_type(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        expected: &str,
    ) -> ExperimentError {
        let found = value.get_ref().type_str();
        let message = format!(
            "`{key}` in {} is of type {found}, expected {expected}",
            self.name
        );
        self.error(value.span(), message)
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Read<T> {
        let message = || format!("{} has no `{key}`", self.name);
        found.ok_or_else(|| self.error(self.span.clone(), message()))
    }

    /// A text, if it is there.
    pub fn text(&self, key: &str) -> Read<Option<At<String>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let text = value.get_ref().as_str().map(str::trim);
        let text = text.ok_or_else(|| self.wrong_type(key, value, "a text"))?;
        if text.is_empty() {
            return Err(self.error(value.span(), format!("`{key}` in {} is empty", self.name)));
        }
        Ok(Some((text.into(), value.span())))
    }

    /// A text that must be there.
    /// A key that is true or false, and false if it is missing.
    pub fn switch(&self, key: &str) -> Read<bool> {
        match self.value(key) {
            None => Ok(false),
            Some(value) => match value.get_ref() {
                DeValue::Boolean(on) => Ok(*on),
                _ => Err(self.error(
                    value.span(),
                    format!("`{key}` in {} must be true or false", self.name),
                )),
            },
        }
    }

    pub fn required_text(&self, key: &str) -> Read<At<String>> {
        self.required(key, self.text(key)?)
    }

    /// A number above 0, if it is there.
    pub fn positive(&self, key: &str) -> Read<Option<At<f64>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = self.positive_of(key, value)?;
        Ok(Some((number, value.span())))
    }

    pub fn positive_of(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Read<f64> {
        let number: Option<f64> = match value.get_ref() {
            DeValue::Integer(integer) => integer.to_string().parse().ok(),
            DeValue::Float(float) => float.as_str().parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| *number > 0.0 && number.is_finite());
        number.ok_or_else(|| self.wrong_type(key, value, "a number above 0"))
    }

    /// A number of the paper, or a range of two.
    pub fn paper_number(&self, key: &str) -> Read<Number> {
        let value = self.required(key, self.value(key))?;
        self.paper_number_of(key, value)
    }

    pub fn paper_number_of(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Read<Number> {
        let Some(range) = value.get_ref().as_array() else {
            return self.positive_of(key, value).map(Number::Exact);
        };
        let ends: Vec<f64> = range
            .iter()
            .map(|end| self.positive_of(key, end))
            .collect::<Read<_>>()?;
        match ends[..] {
            [from, to] if from <= to => Ok(Number::Range(from, to)),
            _ => {
                let message = format!("`{key}` is a range, expected two numbers, the lower first");
                Err(self.error(value.span(), message))
            }
        }
    }

    /// A list of texts; empty if it is not there.
    pub fn texts(&self, key: &str) -> Read<Vec<String>> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let wrong = |value: &Spanned<DeValue<'_>>| self.wrong_type(key, value, "a list of texts");
        let list = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
        let text = |item: &Spanned<DeValue<'_>>| {
            let text = item.get_ref().as_str().map(|text| text.trim().to_string());
            text.ok_or_else(|| wrong(item))
        };
        list.iter().map(text).collect()
    }

    /// The table of this name below this one.
    pub fn section(&self, key: &str) -> Read<Option<Section<'a>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let table = value.get_ref().as_table();
        let table = table.ok_or_else(|| self.wrong_type(key, value, "a table"))?;
        Ok(Some(Section {
            source: self.source,
            name: format!("[{key}]"),
            span: value.span(),
            table,
        }))
    }

    /// The table of this name, which must be there.
    pub fn required_section(&self, key: &str) -> Read<Section<'a>> {
        let message = || format!("the file has no table `[{key}]`");
        let found = self.section(key)?;
        found.ok_or_else(|| self.error(0..0, message()))
    }

    /// The tables `[[key]]`.
    pub fn sections(&self, key: &str) -> Read<Vec<Section<'a>>> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let expected = format!("a list of tables `[[{key}]]`");
        let wrong = |value| self.wrong_type(key, value, &expected);
        let list = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
        let section = |item: &'a Spanned<DeValue<'a>>| {
            let table = item.get_ref().as_table().ok_or_else(|| wrong(item))?;
            Ok(Section {
                source: self.source,
                name: format!("[[{key}]]"),
                span: item.span(),
                table,
            })
        };
        list.iter().map(section).collect()
    }
}

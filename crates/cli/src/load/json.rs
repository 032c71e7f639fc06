//! JSON lines: one JSON value a line, from which keys and values are selected by JSON pointers (RFC
//! 6901).
//!
//! Invariants: a line that is not JSON, or not UTF-8, is a bad record, whatever is selected from
//! it. Selected values are copied unchanged from the input, but strings without quotes and escapes.
//! Nothing is allocated for values that are not selected.

use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::make::{KeyFrom, Maker, ValueFrom};
use super::source::{Line, Source};
use super::{Begin, Pair, Records, Step, record_too_long};
use crate::form::push_json_text;

/// A JSON pointer, as its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The pointer as it was given.
    pub text: String,
    tokens: Vec<String>,
}

impl Pointer {
    /// Reads `/a/b`; a name alone is a member of the outermost object.
    ///
    /// # Errors
    /// The text is not a pointer; the error says what is expected.
    pub fn parse(text: &str) -> Result<Pointer, String> {
        let inner = match text.strip_prefix('/') {
            Some(inner) => inner,
            None if text.is_empty() => {
                return Err("expected a JSON pointer such as /id or /user/name".to_string());
            }
            None => text,
        };
        let token = |token: &str| token.replace("~1", "/").replace("~0", "~");
        Ok(Pointer {
            text: text.to_string(),
            tokens: inner.split('/').map(token).collect(),
        })
    }

    fn name(&self) -> &str {
        self.tokens.last().map_or("", |t| t)
    }
}

/// The pointers that are still searched for, each with its remaining tokens and the number of its
/// slot.
type Wanted<'p> = [(&'p [String], usize)];

/// Walks one level of a value, and puts the values that the pointers name into their slots.
struct Walk<'p, 's, 'de> {
    wanted: &'p Wanted<'p>,
    slots: &'s mut [Option<&'de str>],
}

/// Where a member's name leads.
enum Found<'p> {
    Nothing,
    /// To these pointers.
    To(Vec<(&'p [String], usize)>),
}

impl<'p> Found<'p> {
    fn of(wanted: &'p Wanted<'p>, token: &str) -> Found<'p> {
        let mut found = Vec::new();
        for (tokens, slot) in wanted {
            if let [first, rest @ ..] = tokens
                && first == token
            {
                found.push((rest, *slot));
            }
        }
        if found.is_empty() {
            Found::Nothing
        } else {
            Found::To(found)
        }
    }
}

/// Compares a member's name without keeping it.
struct Name<'p>(&'p Wanted<'p>);

impl<'de, 'p> DeserializeSeed<'de> for Name<'p> {
    type Value = Found<'p>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Found<'p>, D::Error> {
        input.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Name<'p> {
    type Value = Found<'p>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Found<'p>, E> {
        Ok(Found::of(self.0, name))
    }
}

impl<'p, 'de> Walk<'p, '_, 'de> {
    fn take(&mut self, raw: &'de RawValue, found: &[(&'p [String], usize)]) -> Result<(), String> {
        let mut deeper = Vec::new();
        for (tokens, slot) in found {
            if tokens.is_empty() {
                self.slots[*slot] = Some(raw.get());
            } else {
                deeper.push((*tokens, *slot));
            }
        }
        if deeper.is_empty() {
            return Ok(());
        }
        walk(raw.get(), &deeper, self.slots)
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(found) = map.next_key_seed(Name(self.wanted))? {
            match found {
                Found::Nothing => {
                    map.next_value::<IgnoredAny>()?;
                }
                Found::To(found) => {
                    let raw = map.next_value::<&RawValue>()?;
                    self.take(raw, &found).map_err(serde::de::Error::custom)?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        for index in 0.. {
            match Found::of(self.wanted, &index.to_string()) {
                Found::Nothing => {
                    if seq.next_element::<IgnoredAny>()?.is_none() {
                        break;
                    }
                }
                Found::To(found) => {
                    let Some(raw) = seq.next_element::<&RawValue>()? else {
                        break;
                    };
                    self.take(raw, &found).map_err(serde::de::Error::custom)?;
                }
            }
        }
        Ok(())
    }

    // Nothing lies below a scalar.
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Fills the slots of the pointers; checks all of the text.
fn walk<'de>(
    text: &'de str,
    wanted: &Wanted<'_>,
    slots: &mut [Option<&'de str>],
) -> Result<(), String> {
    let mut input = serde_json::Deserializer::from_str(text);
    Walk { wanted, slots }
        .deserialize(&mut input)
        .and_then(|()| input.end())
        .map_err(|e| {
            let what = without_line(&e);
            let several = match what.starts_with("trailing characters") {
                true => "; if a line holds several values, `jq -c .` gives each a line of its own",
                false => "",
            };
            format!("it is not JSON: {what}{several}")
        })
}

/// Errors without "line 1", which could be mistaken for a line of the input.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at byte ")
}

/// All members of the outermost object, in order.
struct Members<'de>(Vec<(String, &'de str)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Members<'de>, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((name, raw)) = map.next_entry::<String, &RawValue>()? {
                    members.push((name, raw.get()));
                }
                Ok(Members(members))
            }
        }
        input.deserialize_map(All)
    }
}

/// The reader; see the module.
pub struct JsonLines {
    key_from: KeyFrom<Pointer>,
    value_from: ValueFrom<Pointer>,
    key: Maker,
    value: Maker,
    limit: usize,
}

impl JsonLines {
    /// Lines of JSON of at most `limit` bytes.
    ///
    /// # Errors
    /// An argument is impossible; the text says which.
    pub fn new(
        key_from: KeyFrom<Pointer>,
        value_from: ValueFrom<Pointer>,
        key: Maker,
        value: Maker,
        limit: usize,
    ) -> Result<JsonLines, String> {
        if let (ValueFrom::Rest, KeyFrom::Parts(parts)) = (&value_from, &key_from)
            && let Some(deep) = parts.iter().find(|p| p.tokens.len() > 1)
        {
            return Err(format!(
                "--value rest omits members of the outermost object, and {} lies deeper; use \
                --value whole",
                deep.text
            ));
        }
        if !value.is_plain() && !matches!(value_from, ValueFrom::Parts(_)) {
            return Err("--value-as needs members: give --value POINTERS".to_string());
        }
        if let ValueFrom::Parts(parts) = &value_from
            && value.is_plain()
        {
            refuse_equal_names(parts)?;
        }
        Ok(JsonLines {
            key_from,
            value_from,
            key,
            value,
            limit,
        })
    }

    /// Makes the pair of a value from the value's text.
    pub(super) fn make(&self, line: &[u8], number: u64, pair: &mut Pair) -> Result<(), String> {
        let line = std::str::from_utf8(line).map_err(|e| {
            format!(
                "it is not UTF-8, and so not JSON, at its byte {}",
                e.valid_up_to()
            )
        })?;
        let keys = match &self.key_from {
            KeyFrom::Number => &[][..],
            KeyFrom::Parts(parts) => parts,
        };
        let values = match &self.value_from {
            ValueFrom::Parts(parts) => &parts[..],
            _ => &[],
        };
        let wanted: Vec<_> = keys
            .iter()
            .chain(values)
            .enumerate()
            .map(|(slot, p)| (&p.tokens[..], slot))
            .collect();
        let mut slots = vec![None; wanted.len()];
        walk(line, &wanted, &mut slots)?;
        match &self.key_from {
            KeyFrom::Number => self.key.number(number, &mut pair.key)?,
            KeyFrom::Parts(parts) => {
                let texts = parts
                    .iter()
                    .zip(&slots)
                    .map(|(pointer, raw)| key_text(pointer, *raw))
                    .collect::<Result<Vec<_>, _>>()?;
                self.key
                    .make(texts.iter().map(|t| t.as_bytes()), &mut pair.key)?;
            }
        }
        match &self.value_from {
            ValueFrom::Whole => pair.value.extend_from_slice(line.trim().as_bytes()),
            ValueFrom::Rest => {
                let Members(members) = serde_json::from_str(line)
                    .map_err(|e| format!("--value rest needs an object: {}", without_line(&e)))?;
                let rest = members
                    .iter()
                    .filter(|(name, _)| !keys.iter().any(|key| key.name() == name))
                    .map(|(name, raw)| (&name[..], *raw));
                push_object(&mut pair.value, rest);
            }
            ValueFrom::Parts(parts) => self.push_values(parts, &slots[keys.len()..], pair)?,
        }
        Ok(())
    }

    fn push_values(
        &self,
        parts: &[Pointer],
        slots: &[Option<&str>],
        pair: &mut Pair,
    ) -> Result<(), String> {
        if self.value.is_plain() && parts.len() > 1 {
            // Missing members are left out, as in the input, but at least one must exist.
            if slots.iter().all(Option::is_none) {
                let texts: Vec<&str> = parts.iter().map(|p| &p.text[..]).collect();
                return Err(format!("it has none of {}", texts.join(", ")));
            }
            let members = parts
                .iter()
                .zip(slots)
                .filter_map(|(p, raw)| Some((p.name(), (*raw)?)));
            push_object(&mut pair.value, members);
            return Ok(());
        }
        let texts = parts
            .iter()
            .zip(slots)
            .map(|(pointer, raw)| match raw {
                Some(raw) if raw.starts_with('"') => text_of(raw),
                Some(raw) => Ok(raw.to_string()),
                None => Err(format!("it has no {}", pointer.text)),
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.value
            .make(texts.iter().map(|t| t.as_bytes()), &mut pair.value)
    }
}

/// Refuses pointers that would put the same name into one object twice, because readers of JSON
/// keep only one of the two values.
fn refuse_equal_names(parts: &[Pointer]) -> Result<(), String> {
    for (i, second) in parts.iter().enumerate() {
        if let Some(first) = parts[..i].iter().find(|p| p.name() == second.name()) {
            return Err(format!(
                "--value makes an object of several members, and {} and {} would both be called \
                 `{}` in it; name only one of them, or use --value rest or --value whole",
                first.text,
                second.text,
                second.name()
            ));
        }
    }
    Ok(())
}

fn push_object<'a>(out: &mut Vec<u8>, members: impl Iterator<Item = (&'a str, &'a str)>) {
    out.push(b'{');
    for (i, (name, raw)) in members.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_json_text(out, name);
        out.push(b':');
        out.extend_from_slice(raw.as_bytes());
    }
    out.push(b'}');
}

fn text_of(raw: &str) -> Result<String, String> {
    serde_json::from_str(raw).map_err(|e| format!("a string cannot be read: {}", without_line(&e)))
}

/// The text of a value that can be a key.
fn key_text(pointer: &Pointer, raw: Option<&str>) -> Result<String, String> {
    let what = match raw {
        None => return Err(format!("it has no {}", pointer.text)),
        Some(raw) => match raw.as_bytes().first() {
            Some(b'"') => return text_of(raw),
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'n') => "null",
            _ => return Ok(raw.to_string()),
        },
    };
    Err(format!(
        "{} is {what}; a key is made of strings, numbers, true or false",
        pointer.text
    ))
}

impl Records for JsonLines {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        loop {
            let begin = Begin::of(source);
            let Some(line) = source.line(self.limit)? else {
                return Ok(Step::End);
            };
            let range = match line {
                Line::Whole(range) => range,
                Line::Long(len) => {
                    source.place.records += 1;
                    return Ok(begin.bad(source, record_too_long(len, self.limit)));
                }
            };
            if source.bytes(range.clone()).trim_ascii().is_empty() {
                continue;
            }
            source.place.records += 1;
            pair.key.clear();
            pair.value.clear();
            let made = self.make(source.bytes(range), source.place.records, pair);
            return Ok(begin.made(source, pair, made));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Read, all, pair};
    use super::*;

    fn read(key: &str, value: &str, text: &[u8]) -> Vec<Read> {
        let key = super::super::make::key_from(key, &Pointer::parse).unwrap();
        let value = super::super::make::value_from(value, &Pointer::parse).unwrap();
        let plain = Maker::plain(b"/");
        let mut lines = JsonLines::new(key, value, plain.clone(), plain, 200).unwrap();
        all(&mut lines, text, 7)
    }

    #[test]
    fn keys_by_pointer() {
        let text = "{\"id\": 7, \"user\": {\"name\": \"J\\u00e9\\n\", \"a/b\": [true, {\"~x\": \
            1.50}]}}\n\n  \r\n"
            .as_bytes();
        let whole = text.split(|b| *b == b'\n').next().unwrap();
        for (pointer, key) in [
            ("/id", "7"),
            ("id", "7"),
            ("/user/name", "Jé\n"),
            ("/user/a~1b/0", "true"),
            ("/user/a~1b/1/~0x", "1.50"),
            ("/id,/user/name,/id", "7/Jé\n/7"),
            ("number", "000000000001"),
        ] {
            assert_eq!(
                read(pointer, "whole", text),
                [pair(key.as_bytes(), whole)],
                "{pointer}"
            );
        }
        for (pointer, word) in [
            ("/user", "an object"),
            ("/user/a~1b", "an array"),
            ("/nothing", "no /nothing"),
            ("/id/x", "no /id/x"),
            ("/user/name/0", "no /user/name/0"),
        ] {
            let found = read(pointer, "whole", text);
            let said = found[0].as_ref().unwrap_err();
            assert!(said.what.contains(word), "{pointer}: {said}");
        }
    }

    #[test]
    fn values_by_pointer() {
        let text = b"{\"id\":\"a\", \"n\" : 1, \"t\":\"x\\\"y\", \"o\":{ \"p\":[1, 2] }}";
        for (value, expected) in [
            ("n", "1"),
            ("/t", "x\"y"),
            ("/o", "{ \"p\":[1, 2] }"),
            ("/o/p", "[1, 2]"),
            ("n,t,none", "{\"n\":1,\"t\":\"x\\\"y\"}"),
            ("rest", "{\"n\":1,\"t\":\"x\\\"y\",\"o\":{ \"p\":[1, 2] }}"),
        ] {
            assert_eq!(
                read("id", value, text),
                [pair(b"a", expected.as_bytes())],
                "{value}"
            );
        }
        assert!(read("id", "none", text)[0].is_err());
        // Even if all of several parts are missing: a misspelled list made an empty object.
        let said = read("id", "nmae,/o/x", text);
        let said = said[0].as_ref().unwrap_err();
        assert!(said.what.contains("none of nmae, /o/x"), "{said}");
        let key = KeyFrom::Parts(vec![Pointer::parse("/o/p").unwrap()]);
        let plain = Maker::plain(b"");
        assert!(JsonLines::new(key, ValueFrom::Rest, plain.clone(), plain, 1).is_err());
    }

    #[test]
    fn what_is_no_json_is_bad_wherever_it_is() {
        let long = format!("{{\"id\":1,\"x\":\"{}\"}}", "y".repeat(200));
        let deep = "[".repeat(150);
        for (bad, word) in [
            (&b"{\"id\":1,\"x\":\"\xff\"}"[..], "UTF-8"),
            (b"{\"id\":1,\"x\":}", "not JSON"),
            (b"{\"id\":1} {\"id\":2}", "jq -c"),
            (b"{\"id\":1", "not JSON"),
            (b"{\"id\":nul}", "not JSON"),
            (b"plain text", "not JSON"),
            (b"{\"id\":1,\"id2\":\"\\ud800\"}", ""),
            (b"7", "no id"),
            (b"{\"id\":null}", "null"),
            (long.as_bytes(), "--max-record"),
            (deep.as_bytes(), "not JSON"),
        ] {
            let text = [b"{\"id\":0}\n", bad, b"\n{\"id\":2}\n"].concat();
            let found = read("id", "whole", &text);
            assert_eq!(found[0], pair(b"0", b"{\"id\":0}"));
            assert_eq!(found[2], pair(b"2", b"{\"id\":2}"));
            if let Err(said) = &found[1] {
                assert_eq!((said.record, said.line, said.offset), (2, Some(2), 9));
                assert!(said.what.contains(word), "{word}: {said}");
            } else {
                assert_eq!(word, "", "{:?}", String::from_utf8_lossy(bad));
            }
        }
    }
}

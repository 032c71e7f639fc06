//! The switches of the schedule of compactions, and the policies, which are sets of switches with
//! names ([RFC 10](../../../../../../docs/rfc/0010-schedule.md), section 6).
//!
//! As text, a value is the name of a policy, and after it the switches that differ from it, each
//! after a comma: `near-data, second-score=off`. Switches alone differ from the policy `default`.
//!
//! Invariants: a value that was made from a text gives an equal value again. Switches that cannot
//! go together, or that this build does not have, are refused by name and never adjusted.
//!
//! Threading: plain values.

use super::value::{SettingType, Value};
use crate::types::error::{Error, Result};

/// How the side that runs a compaction is chosen. The host's own cores are a side, and each other
/// executor is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThirdScore {
    /// The side that will probably have done the job first. Jobs may wait for a busy side.
    FirstDone,
    /// Due compactions of a level are in the order of their size. The slowest side takes the
    /// smallest one, the others take the largest one. Needs another executor than the host's.
    Ends,
    /// As `Ends`, but which side is slow is decided once.
    EndsFrozen,
    /// No job is offered to another executor than the host's.
    HostOnly,
    /// The host and the only other executor run parts of the same job, in proportion to their
    /// speeds, and both must finish before the next one begins.
    Split,
}

/// The switches of the schedule of compactions. The default is the policy `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// Tables that jobs have reserved do not make their level due again.
    pub first_score: bool,
    /// Of a level, the table that overlaps the fewest tables of the next level goes first, and not
    /// the next table in the order of keys.
    pub second_score: bool,
    /// How the side of a job is chosen.
    pub third_score: ThirdScore,
    /// Subjobs of a job begin by size: helpers take the largest, the task that also returns the
    /// outcome the smallest. Otherwise they begin in the order of their keys.
    pub fourth_score: bool,
    /// A compaction may go through a level that is due itself to the level below it.
    pub three_levels: bool,
    /// A side may have several compactions at once, and a compaction several subjobs.
    pub multi_threading: bool,
    /// Work that another executor has failed with may be given to the host. Without it, such work
    /// waits for another executor, or for the same one, however long that takes. This is for
    /// trials, which would not see a fault of an executor otherwise.
    pub fallback: bool,
    /// Compactions of the host whose tables lie on a device may leave the values there, if the
    /// store has an executor for it (`Components::separated`) and it expects to gain by that.
    pub separated_transfer: bool,
    /// Compactions of the host on local tables read columns first, and then only the blocks of
    /// which something is kept.
    pub columns_first: bool,
    /// The time of the host's cores counts up to four times when the side of a compaction is
    /// chosen, because writers and readers need these cores. So a host whose cores are busy takes
    /// a compaction only if every other executor would take more than four times as long, waiting
    /// included. The time counts once if this process used a third of its cores or less lately, or
    /// if there was no write, no get and no seek of a cursor for a tenth of a second.
    pub spare_host: bool,
    /// Lookups that read a table without finding their key there make it move down, although its
    /// level is not due: when they have read as many bytes as the compaction reads and writes. Only
    /// blocks that are read from a file, or decompressed, count, and not those in maps or in the
    /// block cache. It is LevelDB's seek compaction.
    pub seek_compaction: bool,
}

const DEFAULT: ScheduleOptions = ScheduleOptions {
    first_score: true,
    second_score: true,
    third_score: ThirdScore::FirstDone,
    fourth_score: false,
    three_levels: false,
    multi_threading: true,
    fallback: true,
    separated_transfer: false,
    columns_first: false,
    spare_host: false,
    seek_compaction: true,
};

/// The policies by name.
const POLICIES: [(&str, ScheduleOptions); 5] = [
    ("default", DEFAULT),
    (
        "near-data",
        ScheduleOptions {
            third_score: ThirdScore::Ends,
            fourth_score: true,
            three_levels: true,
            separated_transfer: true,
            columns_first: true,
            spare_host: true,
            ..DEFAULT
        },
    ),
    (
        "async-single",
        ScheduleOptions {
            first_score: false,
            second_score: false,
            multi_threading: false,
            spare_host: true,
            ..DEFAULT
        },
    ),
    (
        "sync-split",
        ScheduleOptions {
            third_score: ThirdScore::Split,
            multi_threading: false,
            ..DEFAULT
        },
    ),
    (
        "host-only",
        ScheduleOptions {
            third_score: ThirdScore::HostOnly,
            ..DEFAULT
        },
    ),
];

/// The values of `third-score` by name.
const THIRD_SCORES: [(&str, ThirdScore); 5] = [
    ("first-done", ThirdScore::FirstDone),
    ("ends", ThirdScore::Ends),
    ("ends-frozen", ThirdScore::EndsFrozen),
    ("host-only", ThirdScore::HostOnly),
    ("split", ThirdScore::Split),
];

/// The field of a switch that is on or off.
type Switch = fn(&mut ScheduleOptions) -> &mut bool;

/// The switches that are on or off, by name.
const SWITCHES: [(&str, Switch); 10] = [
    ("first-score", |o| &mut o.first_score),
    ("second-score", |o| &mut o.second_score),
    ("fourth-score", |o| &mut o.fourth_score),
    ("three-levels", |o| &mut o.three_levels),
    ("multi-threading", |o| &mut o.multi_threading),
    ("fallback", |o| &mut o.fallback),
    ("separated-transfer", |o| &mut o.separated_transfer),
    ("columns-first", |o| &mut o.columns_first),
    ("spare-host", |o| &mut o.spare_host),
    ("seek-compaction", |o| &mut o.seek_compaction),
];

const THIRD: &str = "third-score";

impl Default for ScheduleOptions {
    fn default() -> ScheduleOptions {
        DEFAULT
    }
}

impl ThirdScore {
    fn word(self) -> &'static str {
        let word = THIRD_SCORES.iter().find(|(_, score)| *score == self);
        word.map_or("", |(word, _)| word)
    }

    /// Whether compactions below level 0 wait in queues with two ends.
    pub(crate) fn has_queues(self) -> bool {
        matches!(self, ThirdScore::Ends | ThirdScore::EndsFrozen)
    }
}

impl ScheduleOptions {
    /// The switches of a policy. `None` if there is no policy of this name.
    pub fn policy(name: &str) -> Option<ScheduleOptions> {
        let policy = POLICIES.iter().find(|(known, _)| *known == name);
        policy.map(|(_, options)| *options)
    }

    /// The switches from their text. `None` if a name or a value in it is not known.
    fn parse(text: &str) -> Option<ScheduleOptions> {
        let mut options = DEFAULT;
        for (i, part) in text.split(',').map(str::trim).enumerate() {
            let Some((name, value)) = part.split_once('=') else {
                // A policy sets all switches, so it comes first.
                options = ScheduleOptions::policy(part).filter(|_| i == 0)?;
                continue;
            };
            let (name, value) = (name.trim(), value.trim());
            if name == THIRD {
                let (_, score) = THIRD_SCORES.iter().find(|(word, _)| *word == value)?;
                options.third_score = *score;
                continue;
            }
            let (_, switch) = SWITCHES.iter().find(|(known, _)| *known == name)?;
            *switch(&mut options) = match value {
                "on" => true,
                "off" => false,
                _ => return None,
            };
        }
        Some(options)
    }

    /// The switches that differ from those of a policy, as text.
    fn differences(mut self, mut policy: ScheduleOptions) -> Vec<String> {
        let mut parts = Vec::new();
        for (name, switch) in &SWITCHES {
            let on = *switch(&mut self);
            if on != *switch(&mut policy) {
                parts.push(format!("{name}={}", if on { "on" } else { "off" }));
            }
        }
        if self.third_score != policy.third_score {
            parts.push(format!("{THIRD}={}", self.third_score.word()));
        }
        parts
    }

    /// The text with the fewest switches.
    fn text(self) -> String {
        let of = |(name, policy): &(&str, ScheduleOptions)| {
            let mut parts = vec![name.to_string()];
            parts.extend(self.differences(*policy));
            parts
        };
        let shortest = POLICIES.iter().map(of).min_by_key(Vec::len);
        shortest.unwrap_or_default().join(", ")
    }

    /// Refuses switches that do not fit to the number of executors besides the host's.
    pub(crate) fn check_sides(self, other_count: usize) -> Result<()> {
        if self.third_score == ThirdScore::Split && other_count != 1 {
            return Err(Error::invalid_argument(
                "the value of option schedule divides each compaction between the host and one \
                 other executor",
            )
            .expected("one other executor")
            .found(format!(
                "{other_count} other executors, and {}",
                self.text()
            ))
            .advice("pass one executor in `Components::executors`, or choose another policy"));
        }
        if !self.fallback && (other_count == 0 || self.third_score == ThirdScore::HostOnly) {
            return Err(Error::invalid_argument(
                "the value of option schedule has fallback=off, and no other executor than the \
                 host's gets any work",
            )
            .expected("another executor, and a third-score that is not host-only")
            .found(format!(
                "{other_count} other executors, and {}",
                self.text()
            ))
            .advice("leave fallback=off out, or pass an executor in `Components::executors`"));
        }
        if !self.third_score.has_queues() || other_count > 0 {
            return Ok(());
        }
        let score = self.third_score.word();
        Err(Error::invalid_argument(format!(
            "the value of option schedule needs another executor than the host's: third-score is \
             {score}"
        ))
        .expected(format!(
            "with the host alone, third-score={} or third-score={}",
            ThirdScore::FirstDone.word(),
            ThirdScore::HostOnly.word()
        ))
        .found(self.text())
        .advice("pass an executor in `Components::executors`, or choose another policy"))
    }
}

impl SettingType for ScheduleOptions {
    fn to_value(&self) -> Value {
        Value::Text(self.text())
    }

    fn from_value(value: &Value) -> Option<ScheduleOptions> {
        match value {
            Value::Text(text) => ScheduleOptions::parse(text),
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    fn set(text: &str) -> Result<ScheduleOptions> {
        let mut options = Options::default();
        options.set("schedule", &Value::from(text))?;
        options.validate()?;
        Ok(options.schedule)
    }

    #[test]
    fn policies_and_switches_have_a_text() {
        assert_eq!(set("default").unwrap(), ScheduleOptions::default());
        let near = set("near-data").unwrap();
        assert!(near.three_levels && near.third_score == ThirdScore::Ends);
        assert!(near.separated_transfer && near.columns_first);
        let single = set("async-single").unwrap();
        assert!(!single.multi_threading && !single.second_score && !single.first_score);
        let host = set("host-only").unwrap();
        assert!(host.multi_threading && host.third_score == ThirdScore::HostOnly);
        let mixed = set("near-data,second-score=off , third-score = ends-frozen").unwrap();
        let expected = ScheduleOptions {
            second_score: false,
            third_score: ThirdScore::EndsFrozen,
            ..near
        };
        assert_eq!(mixed, expected);
        let text = "near-data, second-score=off, third-score=ends-frozen";
        assert_eq!(mixed.to_value(), Value::from(text));
        let alone = set("three-levels=on").unwrap();
        assert_eq!(alone.to_value(), Value::from("default, three-levels=on"));
    }

    #[test]
    fn every_value_survives_its_text() {
        for bits in 0..1u32 << SWITCHES.len() {
            for (_, third_score) in THIRD_SCORES {
                let mut options = ScheduleOptions {
                    third_score,
                    ..ScheduleOptions::default()
                };
                for (i, (_, switch)) in SWITCHES.iter().enumerate() {
                    *switch(&mut options) = bits & (1 << i) != 0;
                }
                let back = ScheduleOptions::from_value(&options.to_value());
                assert_eq!(back, Some(options), "{}", options.text());
            }
        }
        for (name, policy) in POLICIES {
            assert_eq!(policy.text(), name);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        for text in [
            "",
            "near",
            "near-data near-data",
            "second-score=off, near-data",
            "near-data, second=off",
            "near-data, second-score=maybe",
            "near-data, third-score=on",
        ] {
            let said = set(text).unwrap_err().to_string();
            for name in ["near-data", "async-single", "host-only", "default"] {
                assert!(said.contains(name), "{said}");
            }
            for (name, _) in SWITCHES {
                assert!(said.contains(name), "{said}");
            }
            assert!(
                said.contains("third-score") && said.contains("ends-frozen"),
                "{said}"
            );
        }
        let mut options = Options::default();
        let number = Value::Number(1);
        assert!(options.set("schedule", &number).is_err());
    }

    #[test]
    fn a_divided_job_needs_one_other_executor() {
        for text in ["sync-split", "near-data, third-score=split"] {
            let options = set(text).unwrap();
            for count in [0, 2] {
                let said = options.check_sides(count).unwrap_err().to_string();
                assert!(said.contains("one other executor"), "{said}");
            }
            options.check_sides(1).unwrap();
        }
    }

    #[test]
    fn work_without_fallback_needs_another_executor() {
        let off = set("near-data, fallback=off").unwrap();
        assert!(!off.fallback && off.third_score == ThirdScore::Ends);
        off.check_sides(1).unwrap();
        for (text, count) in [("fallback=off", 0), ("host-only, fallback=off", 1)] {
            let said = set(text).unwrap().check_sides(count).unwrap_err();
            assert!(said.to_string().contains("fallback=off"), "{said}");
        }
        set("sync-split, fallback=off")
            .unwrap()
            .check_sides(1)
            .unwrap();
    }

    #[test]
    fn ends_need_another_executor() {
        for text in ["near-data", "third-score=ends", "third-score=ends-frozen"] {
            let options = set(text).unwrap();
            let said = options.check_sides(0).unwrap_err().to_string();
            assert!(
                said.contains("another executor") && said.contains("host-only"),
                "{said}"
            );
            options.check_sides(1).unwrap();
        }
        for text in ["default", "async-single", "host-only"] {
            set(text).unwrap().check_sides(0).unwrap();
        }
    }
}

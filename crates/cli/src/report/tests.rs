//! Pages of all kinds of data are well-formed, refer to nothing outside, and show the data.

#[path = "../../tests/common/page.rs"]
mod page_reader;

use super::model::*;
use super::page::render;
use page_reader::{Page, read};

fn drawn(report: &Report) -> Page {
    let html = render(report).unwrap();
    let page = read(&html);
    for wrong in ["NaN", "inf", "-0.0"] {
        let shown = page
            .text
            .split(|c: char| !c.is_alphanumeric() && c != '-' && c != '.');
        assert!(!shown.clone().any(|word| word == wrong), "{wrong} is shown");
    }
    // The page contains the data, except the pictures.
    let mut stored: Report = serde_json::from_str(&page.json.replace("\\u003c", "<")).unwrap();
    let mut plain = report.clone();
    for report in [&mut stored, &mut plain] {
        let dumps = report.plasma.iter_mut().flat_map(|p| &mut p.dumps);
        dumps.for_each(|dump| dump.counts.clear());
    }
    assert_eq!(stored, plain);
    page
}

fn sample(at_s: f64, opening: usize, n: u64) -> Sample {
    Sample {
        at_s,
        opening,
        counts: Counts {
            written_count: n,
            user_bytes: n.saturating_mul(48),
            log_bytes: n.saturating_mul(50),
            flush_bytes: n.saturating_mul(40),
            compaction_bytes: n.saturating_mul(30),
            compaction_read_bytes: n,
            memtable_bytes: n,
            level_bytes: vec![n, 0, n],
        },
    }
}

fn delay(from_s: f64, length_us: u64) -> Delayed {
    Delayed {
        from_s,
        length_us,
        cause: "sealed_memtables".to_string(),
        keyspace: "default".to_string(),
        why: "3 memtables waited for their flush, the limit is 3".to_string(),
    }
}

/// A run with some of everything.
fn whole() -> Report {
    Report {
        title: "a run".to_string(),
        verdict: "all went well".to_string(),
        made_unix_s: 1_700_000_000,
        headlines: vec![Headline {
            label: "written".to_string(),
            value: "1".to_string(),
            note: "pair".to_string(),
        }],
        timeline: Timeline {
            length_s: 4.0,
            phases: vec![Phase {
                name: "first".to_string(),
                kind: PhaseKind::Write,
                from_s: 0.0,
                to_s: 2.0,
            }],
            opened_s: vec![0.0, 2.0],
            samples: vec![
                sample(1.0, 0, 1_000_000),
                sample(2.0, 0, 1_500_000),
                sample(3.0, 1, 7_000_000),
            ],
            reads: vec![(1.0, 0), (2.0, 250_000)],
            delays: vec![delay(0.5, 12_345), delay(2.5, 1)],
            delay_totals: vec![DelayTotal {
                cause: "sealed_memtables".to_string(),
                count: 2,
                total_us: 12_346,
                max_us: 12_345,
            }],
            marks: vec![Mark {
                at_s: 2.0,
                label: "✕".to_string(),
                what: "kill 1".to_string(),
            }],
        },
        latencies: vec![
            Latency {
                name: "get".to_string(),
                what: "a read".to_string(),
                count: 1_000,
                mean_ns: 900,
                max_ns: 2_000_000,
                points: vec![(0.5, 800), (0.9, 1_500), (0.99, 7_000), (0.999, 90_000)],
            },
            Latency {
                name: "sync".to_string(),
                count: 1,
                mean_ns: 5_000_000,
                max_ns: 5_000_000,
                ..Latency::default()
            },
        ],
        writes: vec![Writes {
            name: "it".to_string(),
            user_bytes: 1000,
            log_bytes: 1100,
            flush_bytes: 900,
            compaction_bytes: 2_000,
            compaction_read_bytes: 1_900,
        }],
        kills: vec![Kill {
            after_us: 250_000,
            job_count: 2,
            flush_count: 44,
            compaction_count: 3,
            acknowledged_count: 5_632,
            found_count: 5_633,
            compared_count: 51_533,
            open_us: 47_400,
            replayed_record_count: 663,
            discarded_log_bytes: 17,
        }],
        plasma: Some(Plasma {
            particle_count: 8,
            pair_count: 8,
            reading_us: 212,
            length: 41.0,
            velocity: 2.7,
            dumps: vec![Dump {
                time: 12.0,
                field_energy: 0.02,
                kinetic_energy: 0.5,
                speed_max: 1.2,
                columns: 4,
                counts: vec![0, 1, 2, 0, 0, 3, 1, 1],
            }],
            // Binary fractions, which JSON preserves exactly.
            field_energy: (0..100)
                .map(|n| (f64::from(n) / 8.0, f64::from(n * n + 1) / 1024.0))
                .collect(),
            growth: Some(Growth {
                from: 2.0,
                to: 8.0,
                measured: 0.34,
                theory: 0.35355,
            }),
        }),
        facts: vec![
            Facts {
                title: "Machine".to_string(),
                rows: vec![("processor".to_string(), "fast".to_string())],
                text: String::new(),
            },
            Facts {
                title: "All settings".to_string(),
                rows: Vec::new(),
                text: "sync = \"never\"\n".to_string(),
            },
        ],
    }
}

#[test]
fn a_whole_report_says_its_numbers() {
    let page = drawn(&whole());
    let text = page.text.replace('\u{a0}', " ");
    for expected in [
        "a run",
        "all went well",
        "2023-11-14 22:13 UTC",
        // A million in the first second, then half as many, then the seven millions of the other
        // store.
        "1.00 M/s",
        "500 k/s",
        "7.00 M/s",
        "250 k/s",
        "12.3 ms at 0.50 s, keyspace default: memtables wait for their flush (3 memtables waited \
        for their flush, the limit is 3)",
        "5,632",
        "5,633, all and 1 more",
        "51,533",
        "47.4 ms",
        "663",
        "17 B",
        "800 ns",
        "7.00 µs",
        "90.0 µs",
        "2.00 ms",
        "5.00 ms",
        "it: 4.00 for each byte",
        "1.10",
        "0.90",
        "2.00",
        "time 12",
        "kinetic energy 0.500",
        "0.340",
        "0.354",
        "\u{2212}3.8 %",
        "processor",
        "fast",
        "sync = \"never\"",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    for id in [
        "time",
        "throughput",
        "written",
        "levels",
        "kills",
        "latency",
        "percentiles",
        "bytes",
        "plasma",
        "growth",
        "facts",
    ] {
        assert!(page.has("id", id), "{id}");
    }
    assert!(page.has("title", "kill 1"));
    assert_eq!(page.count("img"), 1);
    // One rectangle a delay.
    assert_eq!(page.count("rect"), 2);
}

#[test]
fn nothing_at_all_is_a_page() {
    let page = drawn(&Report::default());
    assert!(page.text.contains("No writer was killed in this run."));
    assert!(page.text.contains("Nothing was timed."));
    assert!(page.text.contains("Nothing was written."));
    assert!(page.text.contains("No writer was ever delayed."));
    drawn(&Report {
        plasma: Some(Plasma::default()),
        ..Report::default()
    });
}

#[test]
fn one_sample_zeros_and_the_largest_numbers_are_pages() {
    for n in [0, 1, u64::MAX] {
        for at_s in [0.0, 1e-9, 1e12] {
            let mut report = whole();
            let timeline = &mut report.timeline;
            timeline.length_s = at_s;
            timeline.samples = vec![sample(at_s, 0, n)];
            timeline.reads = vec![(at_s, n)];
            timeline.delays = vec![delay(at_s, n)];
            timeline.delay_totals[0] = DelayTotal {
                count: n,
                total_us: n,
                max_us: n,
                ..timeline.delay_totals[0].clone()
            };
            timeline.marks[0].at_s = at_s;
            let latency = &mut report.latencies[0];
            (latency.count, latency.mean_ns, latency.max_ns) = (n, n, n);
            latency.points.iter_mut().for_each(|p| p.1 = n);
            // Sums of the largest numbers do not overflow.
            report.writes[0] = Writes {
                name: String::new(),
                user_bytes: n,
                log_bytes: n / 3,
                flush_bytes: n / 3,
                compaction_bytes: n / 3,
                compaction_read_bytes: n,
            };
            report.kills[0] = Kill {
                after_us: n,
                open_us: n,
                found_count: n,
                discarded_log_bytes: n,
                ..Kill::default()
            };
            let plasma = report.plasma.as_mut().unwrap();
            plasma.dumps[0].counts = vec![n as u32; 8];
            plasma.field_energy = vec![(at_s, n as f64)];
            drawn(&report);
        }
    }
}

#[test]
fn strange_plasmas_are_pages() {
    for (rate, energies) in [
        (0.0, vec![(0.0, 0.0), (1.0, 0.0)]),
        (-1.0, vec![(0.0, 1e-300), (1.0, 1e300)]),
        (1e9, vec![(5.0, 1.0)]),
    ] {
        let mut report = whole();
        let plasma = report.plasma.as_mut().unwrap();
        plasma.field_energy = energies;
        plasma.growth = Some(Growth {
            from: 0.0,
            to: 1.0,
            measured: 0.1,
            theory: rate,
        });
        drawn(&report);
    }
}

#[test]
fn hostile_strings_stay_text() {
    let hostile = "\"'><script>alert(1)</script><!--&amp;\u{0}\u{202e}</style></svg>";
    let evil = || hostile.to_string();
    let mut report = whole();
    report.title = evil();
    report.verdict = evil();
    report.headlines[0] = Headline {
        label: evil(),
        value: evil(),
        note: evil(),
    };
    report.timeline.phases[0].name = evil();
    report.timeline.marks[0] = Mark {
        at_s: 1.0,
        label: evil(),
        what: evil(),
    };
    let delay = &mut report.timeline.delays[0];
    (delay.cause, delay.keyspace, delay.why) = (evil(), evil(), evil());
    report.timeline.delay_totals[0].cause = evil();
    (report.latencies[0].name, report.latencies[0].what) = (evil(), evil());
    report.writes[0].name = evil();
    report.facts[0] = Facts {
        title: evil(),
        rows: vec![(evil(), evil())],
        text: evil(),
    };
    let usual = drawn(&whole());
    let page = drawn(&report);
    assert_eq!(page.count("script"), usual.count("script"));
    let shown = hostile.replace('\u{0}', "\u{fffd}");
    assert!(page.text.matches(&shown).count() > 10);
    assert!(page.has("title", &shown));
}

#[test]
fn many_delays_stay_a_small_file() {
    let mut report = whole();
    report.timeline.delays = (0..2_000)
        .map(|n: u32| delay(f64::from(n) * 0.002, n.into()))
        .collect();
    let html = render(&report).unwrap();
    assert!(html.len() < 1 << 20, "{}", html.len());
    assert_eq!(read(&html).count("rect"), 500);
}

#[test]
fn places_of_reports() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("a store");
    let first = super::Place::beside(&store).unwrap();
    assert_eq!(first.path(), dir.path().join("a store.html"));
    let second = super::Place::beside(&store).unwrap();
    assert_eq!(second.path(), dir.path().join("a store-2.html"));
    second.write(&whole()).unwrap();
    // The first file was never written: nothing stays.
    drop(first);
    let names = |dir: &std::path::Path| {
        std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(dir.path()), ["a store-2.html"]);
    // The requested file is replaced only when there is something to replace it with.
    let asked = dir.path().join("r.html");
    std::fs::write(&asked, "before").unwrap();
    drop(super::Place::asked(&asked).unwrap());
    assert_eq!(std::fs::read_to_string(&asked).unwrap(), "before");
    super::Place::asked(&asked)
        .unwrap()
        .write(&whole())
        .unwrap();
    read(&std::fs::read_to_string(&asked).unwrap());
    let said = super::Place::asked(&dir.path().join("no/such/r.html"))
        .unwrap_err()
        .to_string();
    assert!(said.contains("no/such/r.html"), "{said}");
}

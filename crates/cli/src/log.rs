//! What the store says of its work, on standard error: `--log LEVEL`.
//!
//! What it is: a subscriber of `tracing` that prints a line an event, with the time since the start, the level, and the spans that the event lies in
//! with their fields. Nothing is printed of other crates.
//!
//! Threading: lines come whole, from any thread; each thread has its own stack of spans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Words {
    /// What failed.
    Error,
    /// And what the store had to put up with.
    Warn,
    /// And opens, checkpoints, ingests, keyspaces.
    Info,
    /// And every flush and compaction.
    Debug,
}

impl Words {
    fn level(self) -> Level {
        match self {
            Words::Error => Level::ERROR,
            Words::Warn => Level::WARN,
            Words::Info => Level::INFO,
            Words::Debug => Level::DEBUG,
        }
    }
}

/// Prints from here on.
pub fn begin(words: Words) {
    let printer = Printer {
        level: words.level(),
        start: Instant::now(),
        spans: Mutex::new((0, BTreeMap::new())),
    };
    // It can only have been done before, and then somebody prints already.
    let _ = tracing::subscriber::set_global_default(printer);
}

/// Open spans by number, with how many hold each; and the last number given.
type Spans = (u64, BTreeMap<u64, (String, u64)>);

struct Printer {
    level: Level,
    start: Instant,
    spans: Mutex<Spans>,
}

thread_local! {
    /// The spans that this thread is in, outermost first.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Fields as text; the message first.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Text cannot fail to be written to.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl Printer {
    fn spans(&self) -> std::sync::MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("siltstone")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text::default();
        span.record(&mut text);
        let mut spans = self.spans();
        spans.0 += 1;
        let id = spans.0;
        let shown = format!("{}{}", span.metadata().name(), text.fields);
        spans.1.insert(id, (shown, 1));
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let within = ENTERED.with_borrow(|entered| {
            let spans = self.spans();
            let shown = entered.iter().filter_map(|id| spans.1.get(id));
            shown.fold(String::new(), |all, (span, _)| format!("{all}{span}: "))
        });
        let mut line = String::new();
        // One call, so that lines of several threads stay whole; nobody may be there to read them.
        let _ = writeln!(
            line,
            "{:10.6} {:5} {within}{}{}",
            self.start.elapsed().as_secs_f64(),
            event.metadata().level(),
            text.message,
            text.fields
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| {
            if let Some(at) = entered.iter().rposition(|e| *e == id.into_u64()) {
                entered.remove(at);
            }
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some((_, held)) = self.spans().1.get_mut(&id.into_u64()) {
            *held += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.spans();
        let id = id.into_u64();
        match spans.1.get_mut(&id) {
            Some((_, held)) if *held > 1 => {
                *held -= 1;
                false
            }
            _ => spans.1.remove(&id).is_some(),
        }
    }
}

//! What the store does, on standard error: `--log LEVEL`.
//!
//! Each event of the store's crates is one line: the seconds since the start, the level, the spans
//! that the event happened in with their fields, and the event's message and fields. Events of
//! other crates are left out.
//!
//! Threading: lines come whole, from any thread.

use std::fmt;
use std::time::Instant;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Scope};

/// The least severe events that are printed.
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

impl From<Words> for LevelFilter {
    fn from(words: Words) -> LevelFilter {
        match words {
            Words::Error => LevelFilter::ERROR,
            Words::Warn => LevelFilter::WARN,
            Words::Info => LevelFilter::INFO,
            Words::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Prints the events from here on.
pub fn begin(words: Words) {
    let start = Instant::now();
    let printer = tracing_subscriber::fmt::layer()
        .event_format(Lines { start })
        .with_writer(std::io::stderr)
        // Standard error may be closed, and then there is nowhere to complain.
        .log_internal_errors(false);
    let filter = Targets::new().with_target("siltstone", words);
    let subscriber = tracing_subscriber::registry().with(filter).with(printer);
    // This fails only if there is a subscriber already, and that one prints.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Formats each event as one line.
struct Lines {
    start: Instant,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let seconds = self.start.elapsed().as_secs_f64();
        write!(line, "{seconds:10.6} {:5} ", event.metadata().level())?;
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            line.write_str(span.name())?;
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>()
                && !fields.is_empty()
            {
                write!(line, " {fields}")?;
            }
            line.write_str(": ")?;
        }
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

//! `--log LEVEL`: prints the events of the store to standard error.
//!
//! Each event of the store's crates is one line: the seconds since the start, the level, the spans
//! that the event happened in with their fields, and the event's message and fields. Events of
//! other crates are left out.
//!
//! Threading: any thread may emit events; lines are never mixed.

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
    /// Failures.
    Error,
    /// Also problems that the store handled.
    Warn,
    /// Also opens, checkpoints, ingests, keyspaces.
    Info,
    /// Also every flush and compaction.
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

/// Starts to print events.
pub fn begin(words: Words) {
    let start = Instant::now();
    let printer = tracing_subscriber::fmt::layer()
        .event_format(Lines { start })
        .with_writer(std::io::stderr)
        // If standard error is closed, there is nowhere to report errors.
        .log_internal_errors(false);
    let filter = Targets::new().with_target("siltstone", words);
    let subscriber = tracing_subscriber::registry().with(filter).with(printer);
    // This fails only if there is a subscriber already, which prints the events then.
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

//! What the library logs on this thread.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The level and the text of each event, with its fields.
pub type Lines = Arc<Mutex<Vec<(Level, String)>>>;

struct Log(Lines);

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs `program` and returns what was logged meanwhile.
pub fn logged<T>(program: impl FnOnce(&Lines) -> T) -> (T, Vec<(Level, String)>) {
    let lines = Lines::default();
    let value = tracing::subscriber::with_default(Log(lines.clone()), || program(&lines));
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    (value, lines)
}

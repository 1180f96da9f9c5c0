//! What is logged on this thread, as text.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

struct Kept {
    most: Level,
    lines: Vec<(Level, String)>,
}

/// What is said at most this quietly while `action` runs.
pub(crate) fn of(most: Level, action: impl FnOnce()) -> Vec<(Level, String)> {
    install();
    KEPT.set(Some(Kept { most, lines: Vec::new() }));
    action();
    KEPT.take().expect("kept lines").lines
}

/// Lets lines be kept from here on. One subscriber for the whole process, from before its first
/// event: where subscribers come and go beside each other, `tracing` can miss that one wants an event
/// which another thread registers at that moment.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(ByThread).expect("the only subscriber");
    });
}

/// Gives each event to the thread that it came from, if that keeps any.
struct ByThread;

impl Subscriber for ByThread {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        KEPT.with_borrow(|kept| kept.as_ref().is_some_and(|kept| *metadata.level() <= kept.most))
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        KEPT.with_borrow_mut(|kept| {
            if let Some(kept) = kept {
                kept.lines.push((*event.metadata().level(), text.0));
            }
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }
}

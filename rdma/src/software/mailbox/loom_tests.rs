//! Every interleaving of messages that are sent and a reader that goes to sleep.

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// A descriptor that readers sleep on.
#[derive(Default)]
struct Descriptor {
    readable: Mutex<bool>,
    changed: Condvar,
}

impl Descriptor {
    fn wait(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.changed.wait(readable).unwrap();
        }
    }
}

impl MailboxSignal for Descriptor {
    fn raise(&self) {
        *self.readable.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn clear(&self) -> bool {
        std::mem::take(&mut *self.readable.lock().unwrap())
    }
}

#[test]
fn no_message_is_slept_through() {
    const MESSAGES: usize = 2;
    loom::model(|| {
        let doorbell =
            MailboxDoorbell { signal: Descriptor::default(), rung: AtomicBool::new(false) };
        let shared = Arc::new((doorbell, AtomicUsize::new(0)));
        let send = |shared: Arc<(MailboxDoorbell<Descriptor>, AtomicUsize)>| {
            move || {
                let (doorbell, sent) = &*shared;
                sent.fetch_add(1, Ordering::Release);
                doorbell.ring();
            }
        };
        let senders: Vec<_> = (0..MESSAGES).map(|_| thread::spawn(send(shared.clone()))).collect();
        let (doorbell, sent) = &*shared;
        loop {
            doorbell.quiet();
            if sent.load(Ordering::Acquire) == MESSAGES {
                break;
            }
            doorbell.signal.wait();
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

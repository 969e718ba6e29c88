//! A thread that does something once in each second.

use std::io;
use std::time::Duration;

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};

/// Time between the end of a look and the next one. Doubled, a change is found up to 1 s later; not
/// measured.
const PERIOD: Duration = Duration::from_secs(1);
/// The most that the end of the thread is waited for: the system may keep it for ever. Doubled, a
/// stop beside such a system takes 1 s longer; not measured.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Periodic {
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    /// Closed when it has ended.
    over: Receiver<()>,
}

impl Periodic {
    /// Begins to call a function in a thread of that name.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(name: &str, mut look: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = channel::bounded::<()>(0);
        let (ended, over) = channel::bounded::<()>(0);
        let run = move || {
            let _ended = ended;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), over })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Whatever the reason: it has ended, or is not waited for.
        let _ = self.over.recv_timeout(JOIN_TIMEOUT);
    }
}

//! Thread that calls a function once a second.

use std::io;
use std::time::Duration;

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};

/// Time from the end of a call to the next call.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum wait for the thread at the end, since the system may block it for ever.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Handle of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Periodic {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    /// Channel that disconnects when the thread has ended.
    over: Receiver<()>,
}

impl Periodic {
    /// Starts a thread with this name, which calls the function once a second.
    ///
    /// # Errors
    /// The thread cannot be created.
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
        // The thread has ended, or the wait for it timed out.
        let _ = self.over.recv_timeout(JOIN_TIMEOUT);
    }
}

//! A client of a daemon's management socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::eventually;

/// A daemon that takes longer for a response hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A connection to a daemon's management socket.
#[derive(Debug)]
pub struct ManagementClient {
    stream: UnixStream,
    calls: u64,
}

impl ManagementClient {
    /// Connects, when the daemon listens there.
    ///
    /// # Panics
    /// If it does not listen there in time.
    #[track_caller]
    pub fn connect(path: &Path) -> Self {
        let mut connected = None;
        eventually("the daemon has its management socket", || {
            connected = UnixStream::connect(path).ok();
            connected.is_some()
        });
        let stream = connected.expect("waited for");
        stream.set_read_timeout(Some(HANGS_AFTER)).expect("a time-out is set");
        Self { stream, calls: 0 }
    }

    /// Calls a method: its result, or its error with `code` and `message`.
    ///
    /// # Errors
    /// The error of the response.
    ///
    /// # Panics
    /// If there is no response, or it is not one of JSON-RPC.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.calls += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params });
        self.stream.write_all(request.to_string().as_bytes()).expect("the daemon reads");
        let mut response = self.receive();
        assert_eq!((&response["jsonrpc"], &response["id"]), (&json!("2.0"), &json!(self.calls)));
        match response["error"].is_null() {
            true => Ok(response["result"].take()),
            false => Err(response["error"].take()),
        }
    }

    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = self.stream.read(&mut buffer).expect("the daemon responds");
            assert!(count > 0, "the daemon has closed the connection");
            bytes.extend_from_slice(&buffer[..count]);
            if let Ok(response) = serde_json::from_slice(&bytes) {
                return response;
            }
        }
    }
}

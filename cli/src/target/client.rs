//! A client of a target's management socket: JSON-RPC 2.0.

use std::io::{BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};

/// A connection to a target's management socket.
pub(super) struct RpcClient {
    stream: UnixStream,
    calls: u64,
}

impl RpcClient {
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let connected = UnixStream::connect(path);
        let stream = connected.with_context(|| {
            format!(
                "no target listens on {} (feedrail-target --management PATH makes one listen)",
                path.display()
            )
        })?;
        Ok(Self { stream, calls: 0 })
    }

    /// Calls a method and waits for its result. An error is in the target's words.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.calls += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params });
        self.stream.write_all(request.to_string().as_bytes()).context("the target hung up")?;
        // One response answers one request: nothing of another is read ahead.
        let reader = BufReader::new(&self.stream);
        let mut responses = serde_json::Deserializer::from_reader(reader).into_iter();
        let mut response: Value = match responses.next() {
            Some(Ok(response)) => response,
            Some(Err(error)) if error.is_io() || error.is_eof() => bail!("the target hung up"),
            Some(Err(error)) => return Err(error).context("the target sent no JSON"),
            None => bail!("the target hung up"),
        };
        if response["id"] != json!(self.calls) && response["error"].is_null() {
            bail!("the target answered another request");
        }
        match response["error"]["message"].as_str() {
            Some(message) => Err(anyhow!("{message}")),
            None => Ok(response["result"].take()),
        }
    }
}

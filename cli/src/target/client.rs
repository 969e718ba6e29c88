//! Client of a target's management socket (JSON-RPC 2.0).

use std::io::{BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};

use super::running;

/// Connection to a target's management socket.
pub(super) struct RpcClient {
    stream: UnixStream,
    calls: u64,
}

impl RpcClient {
    /// Connects to the given socket, or else to that of the packaged service or of the only running
    /// target.
    pub(super) fn connect(named: &Option<PathBuf>) -> Result<Self> {
        let path = named.clone().map_or_else(running::only_socket, Ok)?;
        let stream = UnixStream::connect(&path);
        let stream = stream.map_err(|error| {
            let told = not_connected(&path, error.kind());
            anyhow::Error::new(error).context(told)
        })?;
        Ok(Self { stream, calls: 0 })
    }

    /// Calls a method and waits for its result. The message of an error is the target's.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.calls += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params });
        self.stream.write_all(request.to_string().as_bytes()).context("the target hung up")?;
        // The client sends one request at a time, so the reader cannot buffer parts of another
        // response.
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

/// Error message for a failed connection to a socket, with the remedy.
fn not_connected(path: &Path, kind: ErrorKind) -> String {
    let path = path.display();
    match kind {
        ErrorKind::PermissionDenied => format!(
            "{path}: only root and the user whom the target runs as may use it, whatever their groups: repeat the \
             command with sudo"
        ),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
            "no target listens on {path} (feedrail-target --management PATH makes one listen)"
        ),
        _ => format!("cannot connect to {path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_another_user_is_no_missing_target() {
        let told = |kind| not_connected(Path::new("/run/feedrail/target.sock"), kind);
        let denied = told(ErrorKind::PermissionDenied);
        assert!(denied.contains("sudo") && !denied.contains("no target listens"), "{denied}");
        for kind in [ErrorKind::NotFound, ErrorKind::ConnectionRefused] {
            assert!(told(kind).starts_with("no target listens on /run/feedrail"), "{}", told(kind));
        }
    }
}

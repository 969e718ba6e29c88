//! Requests and responses of JSON-RPC 2.0.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Ticks per second (`tick_rate`) in the results of all methods.
pub(super) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Parameters of a method, given by name.
pub(super) type Params = Map<String, Value>;

/// Defines types of parameters that refuse unknown names.
macro_rules! params {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$about])*
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[$of_field])* pub(super) $field: $type,)*
        }
    )*};
}
pub(super) use params;

params! {
    /// Parameters of a method that takes none.
    NoParams {}
}

/// Parses the parameters of a method; unknown names are errors.
pub(super) fn read<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let read = serde_json::from_value(Value::Object(params));
    read.map_err(|error| RpcError::invalid_params(format_args!("Invalid params: {error}")))
}

#[derive(Debug, PartialEq)]
pub(super) struct RpcCall {
    pub(super) method: String,
    pub(super) params: Params,
    /// Request id; `None` for a notification, which gets no response.
    pub(super) id: Option<Value>,
}

/// Error object of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    /// Code of JSON-RPC 2.0, such as -32602 for "Invalid params".
    pub(super) code: i32,
    pub(super) message: String,
}

impl RpcError {
    /// Creates "Parse error": the frame is not JSON.
    pub(super) fn parse(message: impl ToString) -> Self {
        Self { code: -32700, message: message.to_string() }
    }

    pub(super) fn invalid_request(message: impl ToString) -> Self {
        Self { code: -32600, message: message.to_string() }
    }

    pub(super) fn no_method() -> Self {
        Self { code: -32601, message: "Method not found".into() }
    }

    /// Creates "Invalid params": they are not those of the method, or name something that does not
    /// exist.
    pub(super) fn invalid_params(message: impl ToString) -> Self {
        Self { code: -32602, message: message.to_string() }
    }

    /// Creates "Internal error": the target failed to execute the method.
    pub(super) fn internal(message: impl ToString) -> Self {
        Self { code: -32603, message: message.to_string() }
    }

    /// Whether the rest of the stream cannot be parsed.
    pub(super) fn is_parse_error(&self) -> bool {
        self.code == -32700
    }

    /// Creates a server error: the target has no place for the client.
    pub(super) fn refused(message: impl ToString) -> Self {
        Self { code: -32000, message: message.to_string() }
    }
}

/// Malformed request: the error, and the request id for the response (null if unknown).
#[derive(Debug, PartialEq)]
pub(super) struct BadCall {
    pub(super) id: Value,
    pub(super) error: RpcError,
}

impl BadCall {
    fn without_id(error: RpcError) -> Self {
        Self { id: Value::Null, error }
    }
}

/// Message of a client, one line of JSON: a request, or an array of them.
#[derive(Debug, PartialEq)]
pub(super) enum RpcRequest {
    One(RpcCall),
    /// Batch of one or more requests, whose responses are sent as one array.
    Batch(Vec<Result<RpcCall, BadCall>>),
}

impl RpcRequest {
    /// Parses a frame: a request object, or an array of them.
    pub(super) fn parse(frame: &[u8]) -> Result<Self, BadCall> {
        let value: Value = serde_json::from_slice(frame).map_err(|error| {
            BadCall::without_id(RpcError::parse(format_args!("Parse error: {error}")))
        })?;
        match value {
            Value::Array(members) if !members.is_empty() => {
                Ok(Self::Batch(members.into_iter().map(RpcCall::parse).collect()))
            }
            value => RpcCall::parse(value).map(Self::One),
        }
    }
}

impl RpcCall {
    fn parse(value: Value) -> Result<Self, BadCall> {
        let unknown = BadCall::without_id;
        let Value::Object(mut members) = value else {
            let message = "Invalid Request: an object, or an array of some, is expected";
            return Err(unknown(RpcError::invalid_request(message)));
        };
        let id = match members.remove("id") {
            None => None,
            Some(id @ (Value::Null | Value::String(_) | Value::Number(_))) => Some(id),
            Some(_) => {
                let message = "Invalid Request: id is a string or a number";
                return Err(unknown(RpcError::invalid_request(message)));
            }
        };
        Self::of(members, id.clone()).map_err(|error| BadCall { id: id.unwrap_or_default(), error })
    }

    fn of(mut members: Map<String, Value>, id: Option<Value>) -> Result<Self, RpcError> {
        let invalid = RpcError::invalid_request;
        if members.remove("jsonrpc") != Some(Value::from("2.0")) {
            return Err(invalid("Invalid Request: jsonrpc is \"2.0\""));
        }
        let Some(Value::String(method)) = members.remove("method") else {
            return Err(invalid("Invalid Request: method is a string"));
        };
        let params = match members.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(Value::Array(_)) => {
                return Err(RpcError::invalid_params("Invalid params: they are given by name"));
            }
            Some(_) => return Err(invalid("Invalid Request: params is an object")),
        };
        match members.keys().next() {
            Some(other) => {
                let message = format!("Invalid Request: unknown member {other:?}");
                Err(RpcError::invalid_request(message))
            }
            None => Ok(Self { method, params, id }),
        }
    }
}

pub(super) fn response(id: &Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(RpcError { code, message }) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    }
}

/// Serializes a response, or the array of a batch, as a line of text.
pub(super) fn line(response: &Value) -> Vec<u8> {
    format!("{response}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_have_the_codes_of_json_rpc() {
        let cases = [
            ("{]", -32700, json!(null)),
            ("{\"a\":1,}", -32700, json!(null)),
            ("[]", -32600, json!(null)),
            ("{}", -32600, json!(null)),
            ("{\"jsonrpc\":\"1.0\",\"method\":\"a\",\"id\":1}", -32600, json!(1)),
            ("{\"jsonrpc\":\"2.0\",\"id\":1}", -32600, json!(1)),
            ("{\"jsonrpc\":\"2.0\",\"method\":7,\"id\":1}", -32600, json!(1)),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":{}}", -32600, json!(null)),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":\"x\",\"b\":1}", -32600, json!("x")),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":1,\"params\":3}", -32600, json!(1)),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":1,\"params\":[]}", -32602, json!(1)),
        ];
        for (text, code, id) in cases {
            let refusal = RpcRequest::parse(text.as_bytes()).expect_err(text);
            assert_eq!((refusal.error.code, refusal.id), (code, id), "{text}");
        }
    }

    #[test]
    fn a_request_without_an_id_wants_no_response() {
        let call = |id| RpcCall { method: "a".into(), params: Params::new(), id };
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","method":"a"}"#, None),
            (r#"{"jsonrpc":"2.0","method":"a","id":null}"#, Some(Value::Null)),
        ] {
            assert_eq!(RpcRequest::parse(text.as_bytes()), Ok(RpcRequest::One(call(id))));
        }
    }

    #[test]
    fn each_member_of_a_batch_is_judged_by_itself() {
        let text = br#"[{"jsonrpc":"2.0","method":"a","id":1},7,{"jsonrpc":"2.0","id":2}]"#;
        let Ok(RpcRequest::Batch(calls)) = RpcRequest::parse(text) else { panic!("a batch") };
        let [Ok(call), Err(first), Err(second)] = &calls[..] else { panic!("{calls:?}") };
        assert_eq!((&*call.method, &call.id), ("a", &Some(json!(1))));
        assert_eq!((first.error.code, &first.id), (-32600, &Value::Null));
        assert_eq!((second.error.code, &second.id), (-32600, &json!(2)));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(frame in prop::collection::vec(any::<u8>(), 0..64)) {
            let refusal = RpcRequest::parse(&frame).expect_err("no request is that random");
            prop_assert!(refusal.error.code <= -32600);
        }
    }
}

//! JSON-RPC 2.0: requests and responses.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The unit of ticks, in all methods.
pub(super) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Parameters of a method, by name.
pub(super) type Params = Map<String, Value>;

/// Parameters of a method that takes none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParams {}

/// Parses the parameters of a method; unknown ones are errors.
pub(super) fn read<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let read = serde_json::from_value(Value::Object(params));
    read.map_err(|error| RpcError::invalid_params(format_args!("Invalid params: {error}")))
}

/// A request that was understood.
#[derive(Debug, PartialEq)]
pub(super) struct RpcCall {
    pub(super) method: String,
    pub(super) params: Params,
    /// None where no response is wanted.
    pub(super) id: Option<Value>,
}

/// An error of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: i32,
    pub(super) message: String,
}

impl RpcError {
    /// It is no JSON.
    pub(super) fn parse(message: impl ToString) -> Self {
        Self { code: -32700, message: message.to_string() }
    }

    /// It is no request.
    pub(super) fn invalid_request(message: impl ToString) -> Self {
        Self { code: -32600, message: message.to_string() }
    }

    /// The target has no such method.
    pub(super) fn no_method() -> Self {
        Self { code: -32601, message: "Method not found".into() }
    }

    /// The parameters are not those of the method, or name something that is not there.
    pub(super) fn invalid_params(message: impl ToString) -> Self {
        Self { code: -32602, message: message.to_string() }
    }

    /// The target can not do it.
    pub(super) fn internal(message: impl ToString) -> Self {
        Self { code: -32603, message: message.to_string() }
    }

    /// Whether nothing that follows can be understood.
    pub(super) fn is_parse_error(&self) -> bool {
        self.code == -32700
    }

    /// The target has no place for the client.
    pub(super) fn refused(message: impl ToString) -> Self {
        Self { code: -32000, message: message.to_string() }
    }
}

/// An error about a request, and whom to answer: the request's id, or null where it is not known.
#[derive(Debug, PartialEq)]
pub(super) struct BadCall {
    pub(super) id: Value,
    pub(super) error: RpcError,
}

impl RpcCall {
    /// The request of a frame.
    pub(super) fn parse(frame: &[u8]) -> Result<Self, BadCall> {
        let unknown = |error| BadCall { id: Value::Null, error };
        let value: Value = serde_json::from_slice(frame)
            .map_err(|error| unknown(RpcError::parse(format_args!("Parse error: {error}"))))?;
        let Value::Object(mut members) = value else {
            let message = "Invalid Request: an object is expected, and batches are not taken";
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

/// A response as a line of text.
pub(super) fn response(id: &Value, result: Result<Value, RpcError>) -> Vec<u8> {
    let response = match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(RpcError { code, message }) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    };
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
            ("[{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":1}]", -32600, json!(null)),
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
            let refusal = RpcCall::parse(text.as_bytes()).expect_err(text);
            assert_eq!((refusal.error.code, refusal.id), (code, id), "{text}");
        }
    }

    #[test]
    fn a_request_without_an_id_wants_no_response() {
        let request = RpcCall::parse(br#"{"jsonrpc":"2.0","method":"a"}"#).expect("well-formed");
        assert_eq!(request, RpcCall { method: "a".into(), params: Map::new(), id: None });
        let request = RpcCall::parse(br#"{"jsonrpc":"2.0","method":"a","id":null}"#);
        assert_eq!(request.expect("well-formed").id, Some(Value::Null));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(frame in prop::collection::vec(any::<u8>(), 0..64)) {
            let refusal = RpcCall::parse(&frame).expect_err("no request is that random");
            prop_assert!(refusal.error.code <= -32600);
        }
    }
}

//! Harm that a test has the daemon try, to see that its confinement holds. Debug builds only.
#![expect(unsafe_code, reason = "makes a system call by its number")]

/// Variable that says what to try, once the target serves hosts: `call:NUMBER` makes a system call
/// with arguments that are of no use, `read:PATH` opens a file, `connect:ADDRESS` connects by TCP.
const VARIABLE: &str = "FEEDRAIL_DELIBERATE_HARM";

/// Does what the variable says, and logs the result.
pub(in crate::daemon) fn do_deliberate_harm() {
    if !cfg!(debug_assertions) {
        return;
    }
    let Ok(harm) = std::env::var(VARIABLE) else { return };
    let result = match harm.split_once(':') {
        Some(("call", number)) => {
            number.parse().map(call).unwrap_or_else(|error| error.to_string())
        }
        Some(("read", path)) => format!("{:?}", std::fs::File::open(path).map(drop)),
        Some(("connect", address)) => {
            format!("{:?}", std::net::TcpStream::connect(address).map(drop))
        }
        _ => "it names nothing to try".into(),
    };
    tracing::warn!(harm, "deliberate harm: {result}");
}

fn call(number: libc::c_long) -> String {
    // SAFETY: no pointer among the arguments is valid, so the kernel reads and writes no memory.
    let result = unsafe { libc::syscall(number, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64) };
    format!("{result}: {}", std::io::Error::last_os_error())
}

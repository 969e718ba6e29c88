//! The counters for Prometheus and the status page for people: an HTTP/1.1 server on a thread of
//! its own.
//!
//! A client has one request and one response, a bounded time for both, and one of a few places. No
//! client blocks others, and the cores of the target take no part except for their counters.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::{Rc, Weak};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rdma::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::metrics_address::MetricsAddress;
use super::negotiation::{PageContent, PageVariant};
use super::status_page::StatusPage;
use crate::driver::clock::Clock;

/// Most concurrent clients; a further one replaces the oldest.
const MAX_CLIENTS: usize = 16;
/// Longest request in bytes; a longer one is answered by 431.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time of a client for its request and its response.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Age up to which a text is reused for clients that ask for the same format and coding, since
/// counting costs the cores a little. While a client still receives an earlier text, the next one
/// is reused until that client is gone, so there are at most two of each.
const TEXT_AGE: Duration = Duration::from_millis(100);

/// Socket that clients connect to, before it is served.
pub(super) struct MetricsServer {
    listener: TcpListener,
    /// Readable when the target ends.
    stopped: UnixStream,
}

/// Ends the server when it is dropped.
pub(super) struct MetricsStop(#[expect(dead_code, reason = "it is dropped")] UnixStream);

struct MetricsClient {
    stream: TcpStream,
    until: Time,
    phase: ClientPhase,
}

enum ClientPhase {
    Asking(Vec<u8>),
    Reading(Response),
}

/// A response in transmission. Clients share the text of the page.
#[derive(Default)]
struct Response {
    head: Vec<u8>,
    body: Rc<[u8]>,
    sent: usize,
}

impl Response {
    fn of_head(head: String) -> Self {
        Self { head: head.into_bytes(), ..Self::default() }
    }

    /// Bytes to send next; empty if all are sent.
    fn rest(&self) -> &[u8] {
        match self.sent.checked_sub(self.head.len()) {
            None => &self.head[self.sent..],
            Some(sent) => &self.body[sent..],
        }
    }
}

/// Outcome of a client's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientOutcome {
    Stays,
    Leaves,
}

impl MetricsServer {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address cannot be used: one line with the remedy.
    pub(super) fn listen(address: SocketAddr) -> Result<(Self, MetricsStop), String> {
        let bound = MetricsAddress::bind(address).and_then(MetricsAddress::listen);
        let listener = bound.map_err(|error| error.to_string())?;
        let failed = |error: io::Error| format!("metrics: {error}");
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        Ok((Self { listener, stopped }, MetricsStop(stop)))
    }

    /// Address with the port that the system chose.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the target ends. `text` makes the pages.
    pub(super) fn run(&self, text: impl Fn(PageContent) -> String) {
        let mut clients: Vec<MetricsClient> = Vec::new();
        let mut pages = MetricsPages::new(text);
        let clock = Clock::new();
        let mut accepts_from = clock.now();
        loop {
            let now = clock.now();
            clients.retain(|client| client.until > now);
            let accepts = accepts_from <= now;
            if !self.wait(&clients, accepts.then_some(&self.listener), now, accepts_from) {
                return;
            }
            let now = clock.now();
            if accepts && let Err(error) = self.accept_some(&mut clients, now) {
                tracing::warn!(%error, "the metrics page cannot accept a client");
                // Descriptors may be short: try again later.
                accepts_from = now + Duration::from_secs(1);
            }
            clients.retain_mut(|client| client.go_on(&mut pages, now) == ClientOutcome::Stays);
        }
    }

    /// Waits for something to do; false when the target ends.
    fn wait(
        &self,
        clients: &[MetricsClient],
        listener: Option<&TcpListener>,
        now: Time,
        accepts_from: Time,
    ) -> bool {
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.wants())));
        let pause = listener.is_none().then_some(accepts_from);
        let until = clients.iter().map(|client| client.until).chain(pause).min();
        let timeout = until.map(|until| {
            let left = until.saturating_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // An interrupted wait is just a short one.
        let _ = poll(&mut fds, timeout.as_ref());
        fds[0].revents().is_empty()
    }

    /// Accepts at most [`MAX_CLIENTS`] clients, so that a flood does not block the others.
    fn accept_some(&self, clients: &mut Vec<MetricsClient>, now: Time) -> io::Result<()> {
        for _ in 0..MAX_CLIENTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            if clients.len() >= MAX_CLIENTS {
                clients.remove(0);
            }
            let until = now + CLIENT_TIME;
            clients.push(MetricsClient { stream, until, phase: ClientPhase::Asking(Vec::new()) });
        }
        Ok(())
    }
}

/// The page in each variant, produced again when it is old.
struct MetricsPages<F> {
    text: F,
    variants: [PageCopies; PageVariant::COUNT],
}

/// Copies of a variant of the page.
struct PageCopies {
    made: Option<(Time, Rc<[u8]>)>,
    /// Previous copy, while a client receives it.
    earlier: Weak<[u8]>,
}

impl<F: Fn(PageContent) -> String> MetricsPages<F> {
    fn new(text: F) -> Self {
        let nobodys: Rc<[u8]> = Rc::default();
        let none = || PageCopies { made: None, earlier: Rc::downgrade(&nobodys) };
        Self { text, variants: std::array::from_fn(|_| none()) }
    }

    fn get(&mut self, variant: PageVariant, now: Time) -> Rc<[u8]> {
        self.variants.iter_mut().for_each(|copies| copies.let_go(now));
        let make = || {
            let text = (self.text)(variant.content).into_bytes();
            let body = if variant.gzip { compressed(&text) } else { text };
            (now, body.into())
        };
        let (_, body) = self.variants[variant.index()].made.get_or_insert_with(make);
        Rc::clone(body)
    }
}

impl PageCopies {
    /// Drops an old copy unless a client receives it, if no client receives a still older one.
    fn let_go(&mut self, now: Time) {
        if let Some((at, body)) = &self.made
            && now >= *at + TEXT_AGE
            && self.earlier.strong_count() == 0
        {
            self.earlier = Rc::downgrade(body);
            self.made = None;
        }
    }
}

/// Compresses a text with gzip. Samples of one family differ little, so the lowest level suffices.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(text).and_then(|()| encoder.finish());
    written.expect("memory takes every byte")
}

impl MetricsClient {
    fn wants(&self) -> PollFlags {
        match self.phase {
            ClientPhase::Asking(_) => PollFlags::IN,
            ClientPhase::Reading(_) => PollFlags::OUT,
        }
    }

    /// Reads and writes as much as possible without waiting.
    fn go_on(
        &mut self,
        pages: &mut MetricsPages<impl Fn(PageContent) -> String>,
        now: Time,
    ) -> ClientOutcome {
        if let ClientPhase::Asking(request) = &mut self.phase {
            let Some(response) = ask(&mut self.stream, request, pages, now) else {
                return ClientOutcome::Stays;
            };
            self.phase = ClientPhase::Reading(response);
        }
        let ClientPhase::Reading(response) = &mut self.phase else { return ClientOutcome::Stays };
        while !response.rest().is_empty() {
            match self.stream.write(response.rest()) {
                Ok(count) => response.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return ClientOutcome::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return ClientOutcome::Leaves,
            }
        }
        ClientOutcome::Leaves
    }
}

/// Continues to read; returns the response once a request is complete, which is empty for a client
/// that has left.
fn ask(
    stream: &mut TcpStream,
    request: &mut Vec<u8>,
    pages: &mut MetricsPages<impl Fn(PageContent) -> String>,
    now: Time,
) -> Option<Response> {
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Some(Response::default()),
            Ok(count) => request.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Some(Response::default()),
        }
        if let Some(end) = request.windows(4).position(|part| part == b"\r\n\r\n") {
            return Some(respond(&request[..end], pages, now));
        }
        if request.len() > MAX_REQUEST_BYTES {
            return Some(refusal("431 Request Header Fields Too Large", ""));
        }
    }
}

/// Response to a request's head. What follows the head is not read.
fn respond(
    head: &[u8],
    pages: &mut MetricsPages<impl Fn(PageContent) -> String>,
    now: Time,
) -> Response {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let &[method, target, version] = &words[..] else { return refusal("400 Bad Request", "") };
    if !version.starts_with(b"HTTP/1.") || method.is_empty() {
        return refusal("400 Bad Request", "");
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            of_page(pages, PageVariant::of_request(head), now, method)
        }
        (b"GET" | b"HEAD", b"/status.json") => {
            of_page(pages, PageVariant::status(head), now, method)
        }
        (b"GET" | b"HEAD", b"/") => {
            let StatusPage { headers, body } = StatusPage::new();
            success(method, "text/html; charset=utf-8", &headers, body.into_bytes().into())
        }
        (b"GET" | b"HEAD", _) => refusal("404 Not Found", ""),
        _ => refusal("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
    }
}

fn of_page(
    pages: &mut MetricsPages<impl Fn(PageContent) -> String>,
    variant: PageVariant,
    now: Time,
    method: &[u8],
) -> Response {
    let coding = if variant.gzip { "Content-Encoding: gzip\r\n" } else { "" };
    let headers = format!("{coding}Vary: Accept, Accept-Encoding\r\n");
    success(method, variant.content.media_type(), &headers, pages.get(variant, now))
}

/// The response to GET, or its head alone.
fn success(method: &[u8], media: &str, headers: &str, body: Rc<[u8]>) -> Response {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n{headers}Content-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if method == b"GET" { body } else { Rc::default() };
    Response { body, ..Response::of_head(head) }
}

fn refusal(status: &str, header: &str) -> Response {
    Response::of_head(format!(
        "HTTP/1.1 {status}\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;
    use crate::metrics::exposition::MetricsFormat;

    /// Runs a server while `test` connects to it.
    fn serving(test: impl FnOnce(SocketAddr)) {
        let (server, stop) =
            MetricsServer::listen("127.0.0.1:0".parse().expect("valid")).expect("free");
        let address = server.address().expect("bound");
        thread::scope(|scope| {
            scope.spawn(|| {
                server.run(|content| match content {
                    PageContent::Metrics(format) => format!("{format:?}\n"),
                    PageContent::Status => "{}".to_owned(),
                })
            });
            test(address);
            drop(stop);
        });
    }

    fn response(address: SocketAddr, request: &[u8]) -> String {
        String::from_utf8(bytes(address, request)).expect("text")
    }

    fn bytes(address: SocketAddr, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(request).expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("answered");
        bytes
    }

    #[test]
    fn pages_are_in_the_format_and_coding_that_was_asked_for() {
        serving(|address| {
            let request = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
            let page = response(address, request);
            assert!(
                page.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0;")
            );
            assert!(page.ends_with("\r\n\r\nOpenMetrics\n"), "{page}");
            let page = bytes(address, b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n");
            let end = page.windows(4).position(|part| part == b"\r\n\r\n").expect("a head") + 4;
            let head = str::from_utf8(&page[..end]).expect("text");
            assert!(head.contains("\r\nContent-Encoding: gzip\r\n"), "{head}");
            assert!(head.contains("\r\nVary: Accept, Accept-Encoding\r\n"), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", page.len() - end)));
            let mut text = String::new();
            flate2::read::GzDecoder::new(&page[end..]).read_to_string(&mut text).expect("gzip");
            assert_eq!(text, "Prometheus\n");
        });
    }

    #[test]
    fn people_have_a_page_that_reads_the_status() {
        serving(|address| {
            let page = response(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(page.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{page}");
            assert!(page.contains("\r\nContent-Security-Policy: default-src 'none'; "));
            assert!(page.ends_with("</html>\n"));
            let status = response(address, b"GET /status.json HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(status.contains("\r\nContent-Type: application/json\r\n"), "{status}");
            assert!(status.ends_with("\r\n\r\n{}"), "{status}");
        });
    }

    #[test]
    fn a_turn_accepts_a_bounded_number_of_clients() {
        let address = "127.0.0.1:0".parse().expect("valid");
        let (server, _stop) = MetricsServer::listen(address).expect("free");
        let address = server.address().expect("bound");
        let connect = |_| TcpStream::connect(address).expect("connected");
        let _waiting: Vec<_> = (0..=MAX_CLIENTS).map(connect).collect();
        let mut clients = Vec::new();
        server.accept_some(&mut clients, Clock::new().now()).expect("accepted");
        assert_eq!(clients.len(), MAX_CLIENTS);
        assert!(server.listener.accept().is_ok(), "one waits for the next turn");
    }

    #[test]
    fn requests_have_the_responses_of_http() {
        serving(|address| {
            let page = response(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
            assert!(page.starts_with(head), "{page}");
            let rest = "Content-Length: 11\r\nConnection: close\r\n\r\nPrometheus\n";
            assert!(page.ends_with(rest), "{page}");
            let head = response(address, b"HEAD /metrics?a=b HTTP/1.0\r\n\r\n");
            assert!(
                head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"),
                "{head}"
            );
            for (request, status) in [
                ("GET /favicon.ico HTTP/1.1\r\n\r\n", "404"),
                ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
                ("GET /metrics\r\n\r\n", "400"),
                ("GET /metrics SPDY\r\n\r\n", "400"),
                ("\r\n\r\n", "400"),
            ] {
                let answer = response(address, request.as_bytes());
                assert_eq!(answer.split(' ').nth(1), Some(status), "{request:?}: {answer}");
            }
        });
    }

    #[test]
    fn clients_that_send_nothing_or_too_much_hold_up_nobody() {
        serving(|address| {
            let silent: Vec<_> = (0..3 * MAX_CLIENTS)
                .map(|_| TcpStream::connect(address).expect("connected"))
                .collect();
            let mut endless = TcpStream::connect(address).expect("connected");
            // The server may close it before all is sent.
            let _ = endless.write_all(&vec![b'a'; 2 * MAX_REQUEST_BYTES]);
            let page = response(address, b"GET /metrics HTTP/1.1\r\n\r\n");
            assert!(page.contains("200 OK"), "{page}");
            drop(silent);
        });
    }

    const PLAIN: PageVariant =
        PageVariant { content: PageContent::Metrics(MetricsFormat::Prometheus), gzip: false };

    fn numbered(made: &Cell<u32>) -> MetricsPages<impl Fn(PageContent) -> String> {
        MetricsPages::new(|_| {
            made.set(made.get() + 1);
            made.get().to_string()
        })
    }

    #[test]
    fn clients_at_once_have_the_same_text() {
        let made = Cell::new(0);
        let mut pages = numbered(&made);
        let start = Time::from_nanos(1);
        for (after, text) in [(Duration::ZERO, b"1"), (TEXT_AGE / 2, b"1"), (TEXT_AGE, b"2")] {
            assert_eq!(&*pages.get(PLAIN, start + after), text);
        }
    }

    #[test]
    fn clients_that_do_not_read_hold_two_texts_at_most() {
        let made = Cell::new(0);
        let mut pages = numbered(&made);
        let at = |number: u32| Time::from_nanos(1) + number * TEXT_AGE;
        let mut held: Vec<_> = (0..16).map(|number| pages.get(PLAIN, at(number))).collect();
        assert!(held[1..].iter().all(|text| &**text == b"2"), "{held:?}");
        held.remove(0);
        assert_eq!(&*pages.get(PLAIN, at(16)), b"3");
    }

    #[test]
    fn clients_of_all_variants_hold_two_of_each_at_most() {
        let made = Cell::new(0);
        let mut pages = numbered(&made);
        let contents =
            [MetricsFormat::Prometheus, MetricsFormat::OpenMetrics].map(PageContent::Metrics);
        let at = |number: u32| Time::from_nanos(1) + number * TEXT_AGE;
        let ask = |number: u32| {
            let variant =
                PageVariant { content: contents[number as usize % 2], gzip: number % 4 < 2 };
            pages.get(variant, at(number))
        };
        let held: Vec<_> = (0..64).map(ask).collect();
        assert_eq!((held.len(), made.get()), (64, 8));
        drop(held);
        // A copy that no client receives or asks for is not kept.
        let _ = pages.get(PLAIN, at(64));
        assert_eq!(pages.variants.iter().filter(|copies| copies.made.is_some()).count(), 1);
    }
}

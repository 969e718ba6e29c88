//! HTTP/1.1 server for the metrics and the status page, on a separate thread.
//!
//! A connection carries one request and one response, for which it has a limited time. No client
//! blocks others. The threads that serve hosts are not involved, except to report counters.

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

/// Most concurrent clients. A further one replaces the oldest.
const MAX_CLIENTS: usize = 16;
/// Longest request head in bytes. The response to a longer one is status 431.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time that a client has for its request and the response together.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Age up to which a page is sent again to clients that request the same format and coding, since
/// collecting counters costs the cores some time. While a client still receives an older page, the
/// next one is also reused beyond that age, so that at most two pages of a kind exist.
const TEXT_AGE: Duration = Duration::from_millis(100);

/// Listening socket of the server.
pub(super) struct MetricsServer {
    listener: TcpListener,
    /// Readable once the [`MetricsStop`] is dropped.
    stopped: UnixStream,
}

/// Handle that ends the server when it is dropped.
pub(super) struct MetricsStop(#[expect(dead_code, reason = "it is dropped")] UnixStream);

struct MetricsClient {
    stream: TcpStream,
    /// Time at which the client is disconnected.
    until: Time,
    phase: ClientPhase,
}

enum ClientPhase {
    /// The request is being received; these are its bytes so far.
    Asking(Vec<u8>),
    /// The response is being sent.
    Reading(Response),
}

/// Response that is being sent. Clients that receive the same page share its body.
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

    /// Bytes that remain to be sent, of the head or the body; empty if all are sent.
    fn rest(&self) -> &[u8] {
        match self.sent.checked_sub(self.head.len()) {
            None => &self.head[self.sent..],
            Some(sent) => &self.body[sent..],
        }
    }
}

/// Whether a client stays connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientOutcome {
    Stays,
    Leaves,
}

impl MetricsServer {
    /// Listens on an address.
    ///
    /// # Errors
    /// The address cannot be used; the message is one line with the remedy.
    pub(super) fn listen(address: SocketAddr) -> Result<(Self, MetricsStop), String> {
        let bound = MetricsAddress::bind(address).and_then(MetricsAddress::listen);
        let listener = bound.map_err(|error| error.to_string())?;
        let failed = |error: io::Error| format!("metrics: {error}");
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        Ok((Self { listener, stopped }, MetricsStop(stop)))
    }

    /// Listening address, with the port number that the system chose if it was 0.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until the [`MetricsStop`] is dropped. `text` creates a page.
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
                // File descriptors may have run out, so the next attempt is made in 1 s.
                accepts_from = now + Duration::from_secs(1);
            }
            clients.retain_mut(|client| client.go_on(&mut pages, now) == ClientOutcome::Stays);
        }
    }

    /// Waits for a client or a timeout. Returns false if the [`MetricsStop`] was dropped.
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
        // A wait that a signal interrupts is merely shorter.
        let _ = poll(&mut fds, timeout.as_ref());
        fds[0].revents().is_empty()
    }

    /// Accepts at most [`MAX_CLIENTS`] clients, so that many new ones do not delay the others.
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

/// Cache of pages, one for each variant.
struct MetricsPages<F> {
    text: F,
    variants: [PageCopies; PageVariant::COUNT],
}

/// Cached page of one variant.
struct PageCopies {
    /// Time of creation and text of the page.
    made: Option<(Time, Rc<[u8]>)>,
    /// Page before that one, which a client may still receive.
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
    /// Drops a page that is older than [`TEXT_AGE`], unless a client still receives the one before
    /// it.
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

/// Compresses a text with gzip, at the lowest level, since the lines are very similar.
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

    /// Reads and writes as much as is possible without blocking.
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

/// Reads from a client. Returns the response once the request is complete; an empty one if the
/// client has disconnected.
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

/// Returns the response to the head of a request. A body is not read.
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

/// Returns the response with status 200, without a body for HEAD.
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

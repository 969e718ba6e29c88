//! A data loader: rows of random places of one namespace, a batch at a time, while the batch before
//! is being used.
//!
//! ```sh
//! feedrail-target --listen 127.0.0.1:4420 train.bin
//! cargo run --release -p feedrail-initiator --example loader -- \
//!     127.0.0.1:4420 nqn.2026-01.io.feedrail:files train.bin --batches 1000
//! ```

use std::net::ToSocketAddrs;
use std::process::ExitCode;
use std::time::Duration;

use feedrail_initiator::{Entry, Grant, Host, Region, Shards, Submit, SubsystemAddress, Ticket};
use splitmix64::SplitMix64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Batches in flight: one is used while the other is read.
const IN_FLIGHT: usize = 2;

/// The data to load, and how much of it.
pub(crate) struct LoaderOptions {
    target: SubsystemAddress,
    /// Name of the namespace.
    name: String,
    rows: usize,
    row_bytes: u32,
    batches: u64,
}

impl LoaderOptions {
    /// `HOST:PORT NQN NAME [--rows N] [--row-bytes N] [--batches N]`.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut next = |what: &str| {
            arguments.next().ok_or_else(|| format!("{what} is missing: HOST:PORT NQN NAME"))
        };
        let (host, nqn, name) = (next("the target")?, next("the NQN")?, next("the name")?);
        let address = host.to_socket_addrs()?.next().ok_or("the target has no address")?;
        let target = SubsystemAddress { address, nqn: nqn.parse()? };
        let mut options = Self { target, name, rows: 480, row_bytes: 2_050, batches: 100 };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} has no value"))?;
            match name.as_str() {
                "--rows" => options.rows = value.parse()?,
                "--row-bytes" => options.row_bytes = value.parse()?,
                "--batches" => options.batches = value.parse()?,
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        Ok(options)
    }

    fn batch_bytes(&self) -> usize {
        self.rows * self.row_bytes as usize
    }
}

/// A batch that is being read.
struct Batch {
    region: Region,
    plan: Vec<Entry>,
    ticket: Ticket,
}

struct Loader {
    host: Host,
    shards: Shards,
    options: LoaderOptions,
    random: SplitMix64,
}

impl Loader {
    fn open(options: LoaderOptions) -> Result<Self> {
        let host = Host::new()?;
        let controller = host.connect(options.target).wait()?;
        let namespace = controller.namespace_named(&options.name).wait()?;
        if namespace.size_bytes() < options.row_bytes.into() {
            return Err("the namespace is shorter than a row".into());
        }
        let random = SplitMix64::new(1);
        Ok(Self { host, shards: Shards::new([namespace])?, options, random })
    }

    /// The rows of the next batch, one behind the other in memory.
    fn plan(&mut self) -> Vec<Entry> {
        let length = self.options.row_bytes;
        let size_bytes = self.shards.get(0).map_or(0, |shard| shard.size_bytes());
        let places = size_bytes - u64::from(length) + 1;
        let row = |row: usize| {
            let (offset, dst) = (self.random.below(places), row as u64 * u64::from(length));
            Entry { shard: 0, length, offset, dst }
        };
        (0..self.options.rows).map(row).collect()
    }

    /// Starts reading a batch into a region, and returns without waiting.
    fn begin(&mut self, region: Region) -> Result<Batch> {
        let plan = self.plan();
        let options = Submit { deadline: Some(Duration::from_secs(30)), ..Submit::default() };
        let ticket = self.host.submit(&self.shards, &plan, &region, options)?;
        Ok(Batch { region, plan, ticket })
    }
}

/// Waits for a batch and gives its region back, once `use_row` has had each of its rows.
fn finish(batch: Batch, mut use_row: impl FnMut(&Entry, &[u8])) -> Result<Region> {
    let Batch { region, plan, ticket } = batch;
    let progress = ticket.wait(ticket.len(), None);
    if progress.failed > 0 {
        let error = (0..plan.len()).find_map(|row| ticket.error(row));
        return Err(error.map_or("a row failed".into(), Into::into));
    }
    let mut bytes = Vec::new();
    for entry in &plan {
        // A training loop hands the region's address to its framework instead.
        bytes.resize(entry.length as usize, 0);
        region.copy_out(entry.dst as usize, &mut bytes)?;
        use_row(entry, &bytes);
    }
    Ok(region)
}

/// Loads all batches; `use_row` gets each row and where it came from. Returns the rows per second.
pub(crate) fn run(options: LoaderOptions, mut use_row: impl FnMut(&Entry, &[u8])) -> Result<f64> {
    let (batches, rows, bytes) = (options.batches, options.rows, options.batch_bytes());
    let mut loader = Loader::open(options)?;
    let mut in_flight = std::collections::VecDeque::new();
    let mut idle = Vec::new();
    for _ in 0..IN_FLIGHT {
        idle.push(Region::allocate(bytes, Grant::Persistent)?);
    }
    let (begin, mut begun) = (Host::now(), 0);
    while begun < batches || !in_flight.is_empty() {
        while begun < batches
            && let Some(region) = idle.pop()
        {
            in_flight.push_back(loader.begin(region)?);
            begun += 1;
        }
        if let Some(batch) = in_flight.pop_front() {
            idle.push(finish(batch, &mut use_row)?);
        }
    }
    Ok((batches as f64 * rows as f64) / Host::now().saturating_duration_since(begin).as_secs_f64())
}

fn main() -> ExitCode {
    let options = LoaderOptions::parse(std::env::args().skip(1));
    let mut sum = 0;
    let rate = options.and_then(|options| {
        run(options, |_, row| sum += row.iter().map(|&byte| u64::from(byte)).sum::<u64>())
    });
    match rate {
        Ok(rate) => {
            println!("{rate:.0} rows/s, sum of all bytes {sum}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("loader: {error}");
            ExitCode::FAILURE
        }
    }
}

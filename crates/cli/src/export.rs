//! `export`: a result in the formats of other tools, for their scripts and viewers.

use super::failure::Failure;
use super::progress::Bar;
use super::table::counted;
use super::{Global, interrupt, output};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use sluicenet_export::{ExportError, Given, Run, hpcc, htsim, perfetto};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Export {
    #[command(subcommand)]
    to: To,
}

#[derive(Debug, Subcommand)]
enum To {
    /// The files of HPCC's simulator: hpcc-fct.txt, hpcc-pfc.txt and hpcc-qlen.txt
    Hpcc(Hpcc),
    /// htsim's log of flows: htsim-flows.txt
    Htsim(Htsim),
    /// A trace of pauses and queues for Perfetto (ui.perfetto.dev)
    Perfetto(Perfetto),
}

/// Which result.
#[derive(Debug, clap::Args)]
struct Of {
    /// The result of a run
    dir: PathBuf,
    /// Export the records of a run that did not end, as far as they go
    #[arg(long)]
    partial: bool,
}

#[derive(Debug, clap::Args)]
struct Hpcc {
    #[command(flatten)]
    of: Of,
    /// Where to put the files; default DIR
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Only these files
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(hpcc::File::ALL.map(hpcc::File::short)),
        value_delimiter = ',',
        value_name = "FILES"
    )]
    only: Vec<String>,
    /// The flow file that the run's flows are from: they get its destination ports
    #[arg(long, value_name = "FILE")]
    flows: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Htsim {
    #[command(flatten)]
    of: Of,
    /// Where to write the log; default htsim-flows.txt in DIR
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The connection matrix that the run's flows are from: they get its ids
    #[arg(long, value_name = "FILE.cm")]
    matrix: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Perfetto {
    #[command(flatten)]
    of: Of,
    /// Where to write the trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Export {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        interrupt::ends_at_once();
        match self.to {
            To::Hpcc(v) => v.main(global),
            To::Htsim(v) => v.main(global),
            To::Perfetto(v) => v.main(global),
        }
    }
}

impl Of {
    fn open(&self) -> Result<Run, Failure> {
        Run::open(&self.dir, self.partial).map_err(Failure::input)
    }
}

impl Hpcc {
    fn main(self, global: Global) -> Result<(), Failure> {
        let run = self.of.open()?;
        let folder = self.output.as_ref().unwrap_or(&self.of.dir);
        let is_wanted = |file: &hpcc::File| self.only.is_empty() || self.only.iter().any(|name| name == file.short());
        let files: Vec<hpcc::File> = hpcc::File::ALL.into_iter().filter(is_wanted).collect();
        let ports = self.flows.as_deref().map(Given::ports).transpose().map_err(Failure::input)?;
        told(&with_bar(global, |tell| hpcc::write(&run, &files, folder, ports, tell))?, global);
        Ok(())
    }
}

impl Htsim {
    fn main(self, global: Global) -> Result<(), Failure> {
        let run = self.of.open()?;
        let path = self.output.unwrap_or_else(|| self.of.dir.join(htsim::FILE));
        let ids = self.matrix.as_deref().map(Given::ids).transpose().map_err(Failure::input)?;
        told(&[with_bar(global, |tell| htsim::write(&run, &path, ids, tell))?], global);
        Ok(())
    }
}

impl Perfetto {
    fn main(self, global: Global) -> Result<(), Failure> {
        let (run, path) = (self.of.open()?, self.output);
        let missing = perfetto::check(&run).map_err(Failure::input)?;
        if let Some((what, setting)) = missing.filter(|_| !global.quiet) {
            let dir = self.of.dir.display();
            output::note(&format!("note: {dir}: the trace has no {what}: `{setting}` records them"));
        }
        let counts = with_bar(global, |tell| perfetto::write(&run, &path, tell))?;
        let perfetto::Counts { processes, tracks, slices, arrows, values } = counts;
        if global.json {
            output::json(&json!({
                "file": path.display().to_string(),
                "processes": processes,
                "tracks": tracks,
                "pauses": slices,
                "arrows": arrows,
                "queue_lengths": values,
            }));
        } else {
            let parts = [
                counted(processes, "switch or server", "switches and servers"),
                counted(tracks, "track", "tracks"),
                counted(slices, "pause", "pauses"),
                counted(arrows, "arrow", "arrows"),
                counted(values, "length of a queue", "lengths of queues"),
            ];
            output::print(&format!("{}: {}\n", path.display(), parts.join(", ")));
        }
        Ok(())
    }
}

/// Exports with a bar over the work.
fn with_bar<T>(
    global: Global,
    export: impl FnOnce(&mut dyn FnMut(f64)) -> Result<T, ExportError>,
) -> Result<T, Failure> {
    let bar = Bar::new(&[1.0], global.quiet);
    let exported = export(&mut |done| bar.share(done));
    bar.clear();
    exported.map_err(Failure::input)
}

/// Prints which files were written, and their lines.
fn told(files: &[(PathBuf, u64)], global: Global) {
    if global.json {
        let file = |(path, lines): &(PathBuf, u64)| json!({ "file": path.display().to_string(), "lines": lines });
        return output::json(&json!({ "files": files.iter().map(file).collect::<Vec<_>>() }));
    }
    for (path, lines) in files {
        output::print(&format!("{}: {}\n", path.display(), counted(*lines, "line", "lines")));
    }
}

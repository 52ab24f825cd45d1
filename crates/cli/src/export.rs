//! `export`: a result in the formats of other tools, for their scripts and viewers.

use super::Global;
use super::failure::Failure;
use super::output;
use super::progress::Bar;
use super::table::{count, counted};
use clap::{Subcommand, ValueEnum};
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
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FILES")]
    only: Vec<HpccFile>,
    /// The flow file that the run's flows are from: they get its destination ports
    #[arg(long, value_name = "FILE")]
    flows: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HpccFile {
    Fct,
    Pfc,
    Qlen,
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
        let files: Vec<hpcc::File> = hpcc::File::ALL.into_iter().filter(|&file| self.has(file)).collect();
        let ports = self.flows.as_deref().map(Given::ports).transpose().map_err(Failure::input)?;
        told(&with_bar(global, |tell| hpcc::write(&run, &files, folder, ports, tell))?, global);
        Ok(())
    }

    fn has(&self, file: hpcc::File) -> bool {
        let file = match file {
            hpcc::File::Fct => HpccFile::Fct,
            hpcc::File::Pfc => HpccFile::Pfc,
            hpcc::File::Qlen => HpccFile::Qlen,
        };
        self.only.is_empty() || self.only.contains(&file)
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
        if let Some(missing) = missing.filter(|_| !global.quiet) {
            output::note(&format!("note: {}: the trace has {missing}", self.of.dir.display()));
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
        let noun = if *lines == 1 { "line" } else { "lines" };
        output::print(&format!("{}: {} {noun}\n", path.display(), count(*lines)));
    }
}

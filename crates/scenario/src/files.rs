//! Input files of a scenario: each read once, parsed once, kept for the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::{Error, Result, Warning};
use super::model::InputFile;
use crate::formats::{self, Cdf, ConnectionMatrix, FILE_BYTES_MAX, HpccFlows, HpccTopology, HtsimTopology};
use crate::sonic::{ConfigDb, parse_config_db};

/// An input file as read.
#[derive(Clone, Debug)]
pub struct Input {
    /// As written in the scenario.
    pub path: String,
    /// All its bytes.
    pub bytes: Arc<[u8]>,
}

type Parsed<T> = BTreeMap<String, Arc<T>>;

/// The folder where relative names start, and the files read so far.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// None where a scenario did not come from a folder and may name no files.
    pub base: Option<PathBuf>,
    pub inputs: BTreeMap<String, Arc<[u8]>>,
    pub warnings: Vec<Warning>,
    cdfs: Parsed<Cdf>,
    hpcc_topologies: Parsed<HpccTopology>,
    hpcc_flows: Parsed<HpccFlows>,
    htsim_topologies: Parsed<HtsimTopology>,
    matrices: Parsed<ConnectionMatrix>,
    sonic: Parsed<ConfigDb>,
}

type Parser<T> = fn(&str, &[u8]) -> Result<(T, Vec<Warning>)>;

impl Files {
    pub fn new(base: Option<PathBuf>) -> Files {
        Files { base, ..Files::default() }
    }

    /// The bytes of a file, from memory where it was read before.
    pub fn bytes(&mut self, path: &str) -> Result<Arc<[u8]>> {
        if let Some(bytes) = self.inputs.get(path) {
            return Ok(Arc::clone(bytes));
        }
        let Some(base) = &self.base else {
            return Err(Error::file(path, "this scenario has no folder to read files from")
                .hint("load it from a file instead of from text"));
        };
        let full = base.join(path);
        let bytes: Arc<[u8]> = formats::read_bounded(&full, path, FILE_BYTES_MAX)
            .map_err(|e| if full.exists() { e } else { e.hint("file names are relative to the scenario's folder") })?
            .into();
        self.inputs.insert(path.into(), Arc::clone(&bytes));
        Ok(bytes)
    }

    fn parsed<T>(
        &mut self,
        path: &str,
        cache: fn(&mut Files) -> &mut Parsed<T>,
        parse: Parser<T>,
    ) -> Result<InputFile<T>> {
        if let Some(content) = cache(self).get(path) {
            return Ok(InputFile { path: path.into(), content: Arc::clone(content) });
        }
        let bytes = self.bytes(path)?;
        let (content, warnings) = parse(path, &bytes)?;
        self.warnings.extend(warnings);
        let content = Arc::new(content);
        cache(self).insert(path.into(), Arc::clone(&content));
        Ok(InputFile { path: path.into(), content })
    }

    pub fn cdf(&mut self, path: &str) -> Result<InputFile<Cdf>> {
        self.parsed(path, |f| &mut f.cdfs, formats::parse_cdf)
    }

    pub fn hpcc_topology(&mut self, path: &str) -> Result<InputFile<HpccTopology>> {
        self.parsed(path, |f| &mut f.hpcc_topologies, formats::parse_hpcc_topology)
    }

    pub fn hpcc_flows(&mut self, path: &str) -> Result<InputFile<HpccFlows>> {
        self.parsed(path, |f| &mut f.hpcc_flows, formats::parse_hpcc_flows)
    }

    pub fn htsim_topology(&mut self, path: &str) -> Result<InputFile<HtsimTopology>> {
        self.parsed(path, |f| &mut f.htsim_topologies, formats::parse_htsim_topology)
    }

    pub fn matrix(&mut self, path: &str) -> Result<InputFile<ConnectionMatrix>> {
        self.parsed(path, |f| &mut f.matrices, formats::parse_connection_matrix)
    }

    pub fn sonic(&mut self, path: &str) -> Result<InputFile<ConfigDb>> {
        self.parsed(path, |f| &mut f.sonic, parse_config_db)
    }
}

//! Images from files: what `docker save` writes, OCI layouts, and plain file systems as `docker export` writes them.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    Doing, ImageError, Limits, Origin, Progress, Result, Step, Template,
    manifest::{self, Config, Descriptor, MAX_DOCUMENT, MAX_LAYERS, Manifest, printable, verify},
    store::Change,
    stream::{Budget, LayerStream, digest_text},
    tar::{Kind, Reader},
};

/// Of an archive that holds an image: each layer has a few. What a file system's archive has is not kept.
const MAX_INDEX: usize = 10_000;
/// A list of images may list lists.
const MAX_LISTS: usize = 4;

/// Adds a template from an archive; `-` is standard input.
pub fn load(
    change: &Change<'_>,
    name: &str,
    path: &Path,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Template> {
    change.check_free(name)?;
    let origin = match path.to_str() {
        Some("-") => Origin::Tar("standard input".into()),
        _ => Origin::Tar(path.display().to_string()),
    };
    let mut archive = Archive::open(change, path, limits, progress)?;
    let loaded = archive.load(change, name, origin, limits, progress);
    loaded.map_err(|error| error.doing(format_args!("load {}", path.display())))
}

/// As [`load`], of an archive that an engine wrote.
pub(crate) fn load_as(
    change: &Change<'_>,
    name: &str,
    path: &Path,
    origin: Origin,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Template> {
    Archive::open(change, path, limits, progress)?.load(change, name, origin, limits, progress)
}

/// Whether a file holds an image, and not a plain file system.
pub(crate) fn holds_image(
    change: &Change<'_>,
    path: &Path,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<bool> {
    Ok(Archive::open(change, path, limits, progress)?.form()? != Form::FileSystem)
}

/// An archive of archives, decompressed, with its parts looked up by the names they have in there and nowhere else.
struct Archive {
    file: File,
    length: u64,
    parts: BTreeMap<String, Part>,
}

enum Part {
    File {
        at: u64,
        size: u64,
    },
    /// Layers that are alike are written once.
    Link(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Oci,
    Docker,
    FileSystem,
}

/// What `docker save` says of an image.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Archive {
    fn open(change: &Change<'_>, path: &Path, limits: &Limits, progress: Progress<'_>) -> Result<Self> {
        let mut file = if path.to_str() == Some("-") {
            plain_copy(change, io::stdin().lock(), None, limits, progress)?
        } else {
            let mut file = File::open(path).doing(|| format!("open {}", path.display()))?;
            let metadata = file.metadata().doing(|| format!("look at {}", path.display()))?;
            if !metadata.is_file() {
                return Err(ImageError::new(format!("{} is not a file", path.display()))
                    .hint("--tar takes an archive; a directory with a Dockerfile is --dockerfile DIR"));
            }
            let mut start = [0; 4];
            let compressed = matches!(file.read(&mut start)?, 2.. if start[..2] == [0x1f, 0x8b])
                || start == [0x28, 0xb5, 0x2f, 0xfd]
                || start[..3] == *b"BZh"
                || start == [0xfd, b'7', b'z', b'X'];
            file.rewind()?;
            if compressed { plain_copy(change, file, Some(metadata.len()), limits, progress)? } else { file }
        };
        let length = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut archive = Self { file, length, parts: BTreeMap::new() };
        archive.index().map_err(|error| error.doing(format_args!("read {}", path.display())))?;
        Ok(archive)
    }

    /// Notes where the parts are that an image's archive has.
    fn index(&mut self) -> Result<()> {
        let mut reader = Reader::new(BufReader::new(self.file.try_clone()?));
        let mut entries = 0;
        while let Some(entry) = reader.next_entry()? {
            entries += 1;
            let at = reader.position();
            let skipped = reader.forget_content();
            if at.saturating_add(entry.size) > self.length {
                return Err(ImageError::new("the archive is truncated"));
            }
            reader.get_mut().seek_relative(skipped as i64)?;
            let name = String::from_utf8_lossy(&entry.path);
            let name = name.trim_start_matches("./");
            let is_part = ["manifest.json", "index.json", "oci-layout"].contains(&name)
                || name.starts_with("blobs/sha256/")
                || name.ends_with("/layer.tar")
                // Podman names layers like settings.
                || ([".json", ".tar"].iter().any(|end| name.ends_with(end)) && !name.contains('/'));
            if !is_part || self.parts.len() >= MAX_INDEX {
                continue;
            }
            let part = match entry.kind {
                Kind::File => Part::File { at, size: entry.size },
                Kind::Symlink | Kind::HardLink => {
                    Part::Link(beside(name, &String::from_utf8_lossy(&entry.target)))
                }
                _ => continue,
            };
            self.parts.insert(name.to_owned(), part);
        }
        if entries == 0 {
            return Err(ImageError::new("the archive is empty"));
        }
        Ok(())
    }

    fn form(&mut self) -> Result<Form> {
        if self.parts.contains_key("oci-layout") && self.parts.contains_key("index.json") {
            return Ok(Form::Oci);
        }
        // A file system may happen to have such a file.
        let saved = self.parts.contains_key("manifest.json")
            && self
                .saved()
                .is_ok_and(|saved| saved.iter().any(|image| self.parts.contains_key(&image.config)));
        Ok(if saved { Form::Docker } else { Form::FileSystem })
    }

    fn load(
        &mut self,
        change: &Change<'_>,
        name: &str,
        origin: Origin,
        limits: &Limits,
        progress: Progress<'_>,
    ) -> Result<Template> {
        let mut budget = Budget::new(limits.clone());
        match self.form()? {
            Form::Oci => self.load_oci(change, name, origin, &mut budget, progress),
            Form::Docker => self.load_saved(change, name, origin, &mut budget, progress),
            Form::FileSystem => {
                self.file.rewind()?;
                progress(Step::Begin { what: "unpacking the file system", bytes: Some(self.length) });
                let layer = change.add_layer(&self.file, None, &mut budget, progress)?;
                change.add_local(name, origin, None, vec![layer], &Config::default())
            }
        }
    }

    fn load_oci(
        &mut self,
        change: &Change<'_>,
        name: &str,
        origin: Origin,
        budget: &mut Budget,
        progress: Progress<'_>,
    ) -> Result<Template> {
        let mut manifest = Manifest::parse(&self.document("index.json")?)?;
        let mut digest = None;
        for _ in 0..MAX_LISTS {
            if manifest.config.is_some() {
                break;
            }
            if manifest.manifests.len() > 1 && manifest.manifests.iter().all(|entry| entry.platform.is_none())
            {
                return Err(several(manifest.manifests.iter().map(annotated_name)));
            }
            let entry = manifest.for_this_machine()?.clone();
            manifest = Manifest::parse(&self.blob(&entry)?)?;
            digest = Some(entry.digest);
        }
        let (config, layers) = manifest.image()?;
        let config: Config = manifest::parse(&self.blob(&config)?, "the image's settings")?;
        config.check(layers.len())?;
        let count = layers.len();
        for (at, (layer, diff_id)) in layers.iter().zip(config.diff_ids()).enumerate() {
            if change.has_layer(diff_id) {
                continue;
            }
            let what = format!("unpacking layer {} of {count}", at + 1);
            progress(Step::Begin { what: &what, bytes: Some(layer.size) });
            let part = blob_name(layer)?;
            let mut hash = Sha256::new();
            io::copy(&mut self.part(&part)?, &mut HashWriter(&mut hash))?;
            manifest::same(&digest_text(hash), &layer.digest, "a layer")?;
            change.add_layer(self.part(&part)?, Some(diff_id), budget, progress)?;
        }
        change.add_local(name, origin, digest, config.diff_ids().to_vec(), &config)
    }

    fn load_saved(
        &mut self,
        change: &Change<'_>,
        name: &str,
        origin: Origin,
        budget: &mut Budget,
        progress: Progress<'_>,
    ) -> Result<Template> {
        let saved = self.saved()?;
        let [image] = &saved[..] else {
            return Err(several(saved.iter().map(|image| image.repo_tags.iter().flatten().next().cloned())));
        };
        if image.layers.is_empty() || image.layers.len() > MAX_LAYERS {
            return Err(ImageError::new(format!("the image has {} layers", image.layers.len())));
        }
        let text = self.document(&image.config)?;
        let name_of_config = image.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        if name_of_config.len() == 64 {
            verify(&text, &format!("sha256:{name_of_config}"), "the image's settings")?;
        }
        let config: Config = manifest::parse(&text, "the image's settings")?;
        config.check(image.layers.len())?;
        let count = image.layers.len();
        for (at, (layer, diff_id)) in image.layers.iter().zip(config.diff_ids()).enumerate() {
            if change.has_layer(diff_id) {
                continue;
            }
            let what = format!("unpacking layer {} of {count}", at + 1);
            let part = self.part(layer)?;
            progress(Step::Begin { what: &what, bytes: Some(part.limit()) });
            change.add_layer(part, Some(diff_id), budget, progress)?;
        }
        change.add_local(name, origin, None, config.diff_ids().to_vec(), &config)
    }

    fn saved(&mut self) -> Result<Vec<Saved>> {
        let text = self.document("manifest.json")?;
        manifest::parse(&text, "the archive's manifest.json")
    }

    fn blob(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let text = self.document(&blob_name(descriptor)?)?;
        verify(&text, &descriptor.digest, "a document of the image")?;
        Ok(text)
    }

    fn document(&mut self, name: &str) -> Result<Vec<u8>> {
        let mut part = self.part(name)?;
        if part.limit() > MAX_DOCUMENT {
            return Err(ImageError::new(format!("{} has {} bytes", printable(name), part.limit())));
        }
        let mut text = Vec::new();
        part.read_to_end(&mut text)?;
        Ok(text)
    }

    fn part(&mut self, name: &str) -> Result<io::Take<&File>> {
        let found = match self.parts.get(name) {
            Some(Part::Link(target)) => self.parts.get(target),
            found => found,
        };
        let Some(&Part::File { at, size }) = found else {
            return Err(ImageError::new(format!(
                "the archive names {}, and does not hold it",
                printable(name)
            )));
        };
        self.file.seek(SeekFrom::Start(at))?;
        Ok((&self.file).take(size))
    }
}

/// Decompressed, in a file of ours that is gone when it is closed.
fn plain_copy(
    change: &Change<'_>,
    input: impl Read,
    bytes: Option<u64>,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<File> {
    let path = change.temporary("archive");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .doing(|| format!("make {}", path.display()))?;
    std::fs::remove_file(&path).doing(|| format!("unlink {}", path.display()))?;
    progress(Step::Begin { what: "reading the archive", bytes });
    let mut budget = Budget::new(limits.clone());
    io::copy(&mut LayerStream::new(input, &mut budget, progress)?, &mut file)?;
    Ok(file)
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn blob_name(descriptor: &Descriptor) -> Result<String> {
    Ok(format!("blobs/sha256/{}", manifest::hex_of(&descriptor.digest)?))
}

fn annotated_name(entry: &Descriptor) -> Option<String> {
    let notes = entry.annotations.as_ref()?;
    let names = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    names.iter().find_map(|name| notes.get(*name)).cloned()
}

fn several(names: impl Iterator<Item = Option<String>>) -> ImageError {
    let names: Vec<_> =
        names.map(|name| printable(name.as_deref().unwrap_or("one without a name"))).take(20).collect();
    if names.is_empty() {
        return ImageError::new("the archive holds no image");
    }
    ImageError::new(format!("the archive holds {} images: {}", names.len(), names.join(", ")))
        .hint("save the one that is meant into an archive of its own")
}

/// Where a link in the archive leads: a name in the archive, whatever it says.
fn beside(name: &str, target: &str) -> String {
    let mut path: Vec<&str> = name.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/")
}

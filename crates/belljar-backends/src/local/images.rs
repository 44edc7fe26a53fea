//! Sandboxes of images. Each image that is used has a jailer of its own, in a [`LocalBackend`] of its own: what a jailer's
//! sandboxes have in common is fixed when it starts, and the root is the first part of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use belljar_images::Store;
use belljar_sandbox::{BackendError, Image, State, TemplateInfo};

use super::{LocalBackend, LocalOptions, image, layout::Layout, lock};
use crate::templates::{Hold, Templates};

/// A jailer is there in a moment; whoever asks is told to come back if it is not.
const PATIENCE: Duration = Duration::from_secs(25);

pub(super) type Images = Mutex<HashMap<TemplateInfo, Arc<LocalBackend>>>;

/// What the sandboxes of an image's own backend are made of.
#[derive(Debug, Clone)]
pub struct OfImage {
    template: TemplateInfo,
    /// Of the host: the kernels come from there.
    templates: Templates,
}

impl OfImage {
    /// Makes sure that the image is what the template says, and stays. Returns what its sandboxes are made of.
    pub(super) fn hold(&self, options: &LocalOptions) -> Result<Templates, BackendError> {
        let Image::Layers(layers) = &self.template.image else {
            return Err(BackendError::new(format!("{} is not an image of this backend", self.template.name)));
        };
        let refuse = |error: belljar_images::ImageError| BackendError::new(error.to_string());
        let store = Store::below(&options.sources.home);
        let held = store.hold(&self.template.name).map_err(refuse)?;
        let kept = store.get(&self.template.name).map_err(refuse)?;
        let paths: Vec<_> =
            kept.layers.iter().map(|layer| store.layer(layer)).collect::<Result<_, _>>().map_err(refuse)?;
        if paths != *layers {
            return Err(BackendError::new(format!(
                "the template {} was just replaced; try again",
                kept.name
            )));
        }
        let templates = Templates { image: Some(Hold::of(held.into())), ..self.templates.clone() };
        templates.for_images(&options.sources).map_err(|error| BackendError::new(error.to_string()))
    }
}

impl OfImage {
    pub(super) fn layout(&self, templates: &Templates) -> Layout {
        image::layout(&self.template, templates)
    }
}

impl LocalBackend {
    /// The backend that makes sandboxes of an image, ready to make one.
    pub(super) async fn of_image(&self, template: &TemplateInfo) -> Result<Arc<Self>, BackendError> {
        let refuse =
            |why: &str| BackendError::new(format!("no sandbox of {} can be made: {why}", template.name));
        let backend = self.open_image(template)?;
        let mut state = backend.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Preparing(_)));
        let settled = tokio::time::timeout(PATIENCE, settled).await;
        let settled = settled.map(|state| state.map(|state| state.clone()));
        match settled {
            Ok(Ok(State::Ready)) => Ok(backend),
            Ok(Ok(State::Failed(why))) => {
                // What stood in the way may be gone next time.
                lock(&self.images).retain(|_, other| !Arc::ptr_eq(other, &backend));
                Err(refuse(&why))
            }
            Ok(Ok(State::Preparing(_)) | Err(_)) | Err(_) => {
                Err(refuse("it is still getting ready; try again"))
            }
        }
    }

    fn open_image(&self, template: &TemplateInfo) -> Result<Arc<Self>, BackendError> {
        let mut images = lock(&self.images);
        if let Some(backend) = images.get(template) {
            return Ok(Arc::clone(backend));
        }
        if self.ending.load(std::sync::atomic::Ordering::Acquire) {
            return Err(BackendError::new("it is shutting down"));
        }
        let templates = self.templates.get().cloned();
        let templates =
            templates.ok_or_else(|| BackendError::new("the templates are still being prepared"))?;
        let of_image = OfImage { template: template.clone(), templates };
        let options = LocalOptions { image: Some(Box::new(of_image)), ..self.options.clone() };
        let backend = Self::start(options);
        images.insert(template.clone(), Arc::clone(&backend));
        Ok(backend)
    }

    pub(super) fn image_backends(&self) -> Vec<Arc<Self>> {
        lock(&self.images).values().cloned().collect()
    }
}

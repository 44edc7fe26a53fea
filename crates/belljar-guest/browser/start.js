// Last of the joined files: what moves is watched from the moment that there is a page, so that whoever wants to click soon
// afterwards need not wait to see whether it does.
(bj => {
  if (bj.started) return;
  bj.started = true;
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', () => bj.watch(), { once: true });
  else bj.watch();
})(globalThis.__bj);

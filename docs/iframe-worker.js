// Browsers start no worker from a file. Where the site is opened as one, its search runs in a hidden frame instead.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    this.inside = this.frame.contentWindow;
    this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
    const script = this.inside.document.createElement("script");
    this.ready = new Promise(done => { script.onload = done; });
    script.src = new URL(url, location);
    this.inside.document.body.append(script);
  }
  postMessage(data) { this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data}))); }
  terminate() { this.frame.remove(); }
};

// Browsers start no worker for a page that is opened from disk. There the search runs in a hidden frame, which answers
// to the same calls: postMessage, and message events.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script>
        var postMessage = (data) => parent.postMessage(data, "*")
        var importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve, reject) => {
          const script = document.createElement("script")
          script.onload = resolve
          script.onerror = reject
          script.src = url
          document.head.append(script)
        })), Promise.resolve())
      </script><script src="${new URL(url, document.baseURI)}"></script>`
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return
        const found = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(found)
        if (this.onmessage) this.onmessage(found)
      })
      this.frame.addEventListener("load", () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach((data) => this.postMessage(data))
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}

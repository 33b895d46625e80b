// An engine server whose model is a hash. `engine --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.
package main

import (
	"flag"
	"log"

	"example.com/engine/enginewire"
)

func main() {
	address := flag.String("listen", "127.0.0.1:50051", "HOST:PORT or unix:PATH")
	flag.Parse()
	base := enginewire.NewBase("enginewire-example-go", "1", config)
	s := &service{Base: base, engine: newEngine(base.Health)}
	if err := enginewire.Serve(*address, s); err != nil {
		log.Fatal(err)
	}
	s.cleanup(true)
}

// Program ferretdb serves MongoDB's wire protocol at an address, and keeps its data in SQLite files of a folder.
//
//	ferretdb 127.0.0.1:27017 FOLDER
package main

import (
	"context"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: ferretdb ADDRESS FOLDER")
	}
	folder := url.URL{Scheme: "file", Path: os.Args[2] + "/"}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: os.Args[1]},
		Handler:   "sqlite",
		SQLiteURL: folder.String(),
	})
	if err != nil {
		log.Fatal(err)
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := server.Run(ended); err != nil {
		log.Fatal(err)
	}
}

<%@ page contentType="text/html; charset=UTF-8" import="java.util.*" %><%
    if (session.getAttribute("token") == null) { response.sendError(403, "log in first"); return; }
%><!doctype html><title>Items</title><ul>
<% for (int id = 1; id <= 60; id++) { %><li><a class="item" data-id="<%= id %>" href="item.jsp?id=<%= id %>">Item <%= id %></a>: a thing for everyday use, in stock, <%= id * 7 %> coins.
<% } %></ul>
